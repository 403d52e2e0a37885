"""Sizing questions, as people ask them, for tests."""

from hypothesis import assume
from hypothesis import strategies as st

from dsv4kv.budget.inputs import Inputs, read_inputs
from dsv4kv.budget.scenario import Scenario, resolve

GIB = 2**30

ENGINES = st.sampled_from(["dsv4kv", "vllm:0.26", "vllm:0.33", "sglang:0.5.23", "trtllm"])
LAYOUTS = st.sampled_from([(1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 4, 1), (4, 1, 2), (2, 2, 4)])


def ask(**texts: str) -> Inputs:
    """Inputs from options as they are typed, dashes as underscores."""
    return read_inputs({name.replace("_", "-"): text for name, text in texts.items()})


def scenario(**texts: str) -> Scenario:
    """The first scenario of a question."""
    return resolve(ask(**texts))[0]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Deployments of every engine on GPUs of some size, whether or not they fit."""
    engine, (tp, dp, pp) = draw(ENGINES), draw(LAYOUTS)
    assume(engine != "trtllm" or 1 in (tp, dp))  # which no server of it runs
    return scenario(
        model=draw(st.sampled_from(["v4-flash", "v4-pro"])),
        engine=engine,
        hbm=f"{draw(st.integers(60, 400))}GiB",
        tp=str(tp),
        dp=str(dp),
        pp=str(pp),
        in_flight_tokens=draw(st.sampled_from(["512", "2048", "8192"])),
        draft_layers=draw(st.sampled_from(["0", "1", "3"])),
    )
