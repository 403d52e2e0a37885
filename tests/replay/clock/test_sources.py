"""Which times a configuration chooses, and what a replay makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dsv4kv.budget.gpus import gpu_names, load_gpu
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from dsv4kv.replay.build import Replay, build_replay
from dsv4kv.replay.clock.fit import Compared, _held_out
from dsv4kv.replay.clock.steps import (
    BORROWED,
    MOST_FACTOR,
    HeldOut,
    MeasuredOn,
    find_coefficients,
)
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


def test_every_gpu_with_a_bandwidth_has_a_clock() -> None:
    for name in gpu_names():
        coefficients = find_coefficients(load_gpu(name), "fp4")
        assert coefficients.tflops > 0
        assert bool(load_gpu(name).clock) != ("no points of" in coefficients.source)


def test_a_gpu_without_points_takes_its_nearest_s_and_is_less_sure() -> None:
    own = find_coefficients(load_gpu("h200"), "fp4")
    borrowed = find_coefficients(load_gpu("h20"), "fp4")
    assert borrowed.held_out == own.held_out.widened(BORROWED)
    assert borrowed.decode_layer_us == own.decode_layer_us


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gpu": "b200"}, "h200, calibrated with b200"),
        ({"layout": "TP4 DP2"}, "TP8, calibrated with TP4 DP2"),
        ({"model": "another"}, "calibrated with another"),
    ],
)
def test_a_calibration_of_another_deployment_is_less_sure_and_says_so(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    path, here = tmp_path / "mine.yaml", load_model(small_model().model.preset).name
    own = MeasuredOn(**({"gpu": "h200", "model": here, "layout": "TP8"} | changed))
    same = MeasuredOn(gpu="h200", model=here, layout="TP8")
    found = []
    for measured in (same, own):
        fitted = COEFFICIENTS.model_copy(update={"measured_on": measured})
        path.write_text(yaml.safe_dump(fitted.model_dump()))
        found.append(served(lengths((300, 5)), cost__calibration=path).times)
    alike, other = found
    assert (alike.source, alike.held_out) == ("made up", COEFFICIENTS.held_out)
    assert said in other.source
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


def test_requests_take_turns_on_ranks_and_wait_for_a_slot_of_their_own() -> None:
    """One slot a rank: the third waits for the first, whatever becomes free of the other."""
    two: dict[str, Any] = {"cost__dp": 2, "cost__gpus": 2, "scheduler__prompts": "alone"}
    first, second, third = (64, 200), (64, 2), (64, 2)
    made = served(lengths(first, second, third), scheduler__max_requests=2, **two)
    waited_ns, latencies_ns = (made.outcome.samples_ns[name] for name in ("queueing", "latency"))
    assert sorted(waited_ns)[-1] >= 0.99 * (max(latencies_ns) - made.times.client_s * 2e9)
    free = served(lengths(first, second, third), scheduler__max_requests=4, **two)
    assert max(free.outcome.samples_ns["queueing"]) < 0.1 * sorted(waited_ns)[-1]


@pytest.mark.parametrize("drafts", [0, 2])
def test_ranks_without_a_prompt_decode_beside_one_unless_there_are_drafts(drafts: int) -> None:
    """A prompt of eight chunks comes to another rank or, after one of a token, to the same."""
    shared: dict[str, Any] = {
        "cost__dp": 2,
        "cost__gpus": 2,
        "scheduler__prompts": "alone",
        "scheduler__step_tokens": 2 * 512,
        "scheduler__speculative__draft_tokens": drafts,
        "scheduler__speculative__acceptance": 0,
    }
    prompt = lengths((4000, 1), at=1e-4)
    beside, behind = (
        served([*lengths((100, 60)), *between, *prompt], **shared).scheduler.clock.steps
        for between in ([], lengths((1, 1), at=1e-4))
    )
    chunks, decoded = 1 + 8, 59
    assert behind == chunks + decoded
    assert beside == (chunks + decoded if drafts else 1 + decoded)


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


def test_a_client_is_in_every_first_token_and_between_requests_of_a_closed_loop() -> None:
    closed: dict[str, Any] = {"workload__arrivals": "closed", "workload__concurrency": 1}
    made = served(lengths(*[(300, 5)] * 4), **closed)
    client_s, clock = made.times.client_s, made.scheduler.clock
    assert clock.idle_s == pytest.approx(4 * client_s)
    assert min(made.outcome.samples_ns["ttft"]) > client_s * 1e9
