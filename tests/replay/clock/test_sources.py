"""Which times a configuration chooses, and what a replay makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4kv.budget.gpus import load_gpu
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.replay.build import Replay, build_replay
from dsv4kv.replay.clock.fit import Compared, _held_out
from dsv4kv.replay.clock.steps import BORROWED, MOST_FACTOR, HeldOut, MeasuredOn, find_coefficients
from dsv4kv.traces.request import Request
from tests.replay.clock.test_steps import COEFFICIENTS
from tests.replay.scenes import request, small_config

MODEL = {"cost__calibration": None, "cost__gpus": 8}


def small_model(**settings: Any) -> ReplayConfig:
    return small_config(**(MODEL | settings))


def served(requests: list[Request], **settings: Any) -> Replay:
    made = build_replay(small_model(**settings), requests)
    made.scheduler.run()
    return made


def lengths(*pairs: tuple[int, int], at: float = 0.0) -> list[Request]:
    return [request(at=at, input_tokens=given, output=made) for given, made in pairs]


def test_a_gpu_without_points_takes_its_nearest_s_and_is_less_sure() -> None:
    own = find_coefficients(load_gpu("h200"), "fp4")
    borrowed = find_coefficients(load_gpu("h20"), "fp4")
    assert borrowed.held_out == own.held_out.widened(BORROWED)
    assert borrowed.decode_layer_us == own.decode_layer_us


def test_a_calibration_of_another_deployment_is_less_sure_and_says_so() -> None:
    own = MeasuredOn(gpu="h200", model="v4-flash", layout="TP8")
    fitted = COEFFICIENTS.model_copy(update={"measured_on": own})
    assert fitted.used_on(own) == fitted
    other = fitted.used_on(MeasuredOn(gpu="b200", model="v4-flash", layout="TP4 DP2"))
    assert "(b200, calibrated with h200; TP4 DP2, calibrated with TP8)" in other.source
    assert other.held_out == COEFFICIENTS.held_out.widened(BORROWED)


def test_no_error_is_beyond_what_a_file_may_have() -> None:
    most = HeldOut(ttft=MOST_FACTOR, tpot=MOST_FACTOR / 1.2, throughput=2.0)
    assert most.widened(BORROWED) == HeldOut(ttft=MOST_FACTOR, tpot=MOST_FACTOR, throughput=3.0)
    far = Compared("a run in other units", "ttft", 50.0, 1e-3, 1.0, 10 * MOST_FACTOR)
    assert _held_out([far], most).ttft == MOST_FACTOR


@pytest.mark.parametrize(
    "content", [b"decode_layer_us: -1\n", b"state_passes: 1e+30\n", b"", b"{{", b"\xf1\x00\x9c"]
)
def test_a_file_without_coefficients_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"(?s)cost.calibration: .*has no coefficients"):
        served(lengths((300, 5)), cost__calibration=path)


def test_delayed_prompts_wait_for_every_rank_and_not_for_ever() -> None:
    shared: dict[str, Any] = {
        "cost__dp": 8,
        "scheduler__step_tokens": 4096,
        "scheduler__prompts": "alone",
    }
    requests = [*lengths(*[(256, 400)] * 4), *lengths((256, 2), at=0.2)]
    eager, late = (
        served(requests, scheduler__delay_prompts=delay, **shared) for delay in (False, True)
    )
    ttft_s = [max(made.outcome.samples_ns["ttft"]) / 1e9 for made in (eager, late)]
    step_s = np.median(eager.outcome.samples_ns["tpot"]) / 1e9
    assert ttft_s[1] - ttft_s[0] == pytest.approx(30 * step_s, rel=0.2)
