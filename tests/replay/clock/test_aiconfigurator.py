"""The source aiconfigurator, against a stand-in that answers as 0.12.0 did.

The stand-in looks up what the real ``AicEngine`` answered, which the shipped tables keep.
"""

import sys
from types import ModuleType
from typing import Any

import pytest

from dsv4kv.budget.layout import Layout
from dsv4kv.errors import ConfigError
from dsv4kv.replay.clock.sources import open_engine
from dsv4kv.replay.clock.steps import decode_s, prompt_s
from dsv4kv.replay.clock.tables import open_shipped
from tests.replay.clock.test_steps import DP4, deploy


class Engine:
    """Answers 1 ms for each request or 256 tokens of a prompt, and 1 ms for 1,024 more before."""

    @staticmethod
    def from_spec(spec: bytes) -> "Engine":
        assert spec == b"spec"
        return Engine()

    def decode_step_latency(self, rows: int, context: int, _: int) -> float:
        return rows + context / 1024

    def predict_prefill_latency(self, _: int, tokens: int, prefix: int) -> float:
        return (tokens - prefix) / 256 + prefix / 1024


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The package is installed; what is compiled is noted."""
    calls: list[dict[str, Any]] = []

    def compile_engine(*place: Any, **layout: Any) -> bytes:
        calls.append({"place": place, **layout})
        return b"spec"

    modules: dict[str, dict[str, Any]] = {
        "aiconfigurator_core": {"AicEngine": Engine},
        "aiconfigurator_core.sdk": {},
        "aiconfigurator_core.sdk.engine": {"compile_engine": compile_engine},
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_steps_are_what_the_engine_answers_scaled_as_shipped_tables(
    asked: list[dict[str, Any]],
) -> None:
    times = open_engine(deploy(DP4, drafts=1), "v4-flash", "b200")
    factors = {name: value for name, value, _ in times.constants()}
    decode_ms = factors["a decode step"] * (16 + 4)
    assert decode_s(times, 4 * 16, 4096, 1) == pytest.approx(decode_ms / 1e3)
    prompt_ms = factors["a prompt chunk"] * (4 + 16)
    assert prompt_s(times, 1024, 16_384) == pytest.approx(prompt_ms / 1e3)
    shipped = open_shipped(deploy(DP4, drafts=1), "v4-flash", "b200")
    assert times.held_out == shipped.held_out


def test_the_layout_is_given_as_the_planner_names_it(asked: list[dict[str, Any]]) -> None:
    open_engine(deploy(DP4, drafts=1), "v4-pro", "h200")
    assert asked == [
        {
            "place": ("deepseek-ai/DeepSeek-V4-Pro", "h200_sxm", "sglang", None),
            "tp_size": 1,
            "attention_dp_size": 4,
            "moe_tp_size": 1,
            "moe_ep_size": 4,
            "moe_quant_mode": "fp8_block",
            "nextn": 1,
        }
    ]


def test_without_the_package_a_sentence_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match="pip install aiconfigurator-core"):
        open_engine(deploy(), "v4-flash", "b200")


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("model", "gpu", "layout"),
    [
        ("v3.2", "b200", Layout(tp=4)),
        ("v4-pro", "a100-80gb", Layout(tp=4)),
        ("v4-pro", "b200", Layout(tp=2, pp=2)),
    ],
)
def test_what_the_planner_is_not_asked_for_is_a_sentence(
    model: str, gpu: str, layout: Layout
) -> None:
    with pytest.raises(ConfigError, match=f"not asked for {model} on {gpu}"):
        open_engine(deploy(layout), model, gpu)
