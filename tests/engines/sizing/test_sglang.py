"""SGLang's rules against its own numbers.

Sources: SGLang 0.5.12 to 0.5.23; start-up logs of 0.5.12, 0.5.15 and of September 2026.
"""

from dataclasses import replace

import pytest

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import find_engine
from dsv4kv.engines.sglang.sizes import SglangEngine
from tests.engines.logs.startup import SGLANG
from tests.engines.sizing.deployments import GIB, deploy


def sglang(version: str) -> SglangEngine:
    engine = find_engine(f"sglang:{version}")
    assert isinstance(engine, SglangEngine)
    return engine


@pytest.mark.parametrize(
    ("version", "deployment", "expected"),
    [
        ("0.5.23", deploy(), 7_086.75),
        ("0.5.23", deploy(indexer="mxfp4"), 7_086.75),  # FP4 keys are charged as FP8
        ("0.5.23", deploy("v4-pro"), 10_115.25),
        ("0.5.20", deploy(state_bytes=2), 7_033.45),
        ("0.5.15", deploy("v4-pro", window_ratio=0.15), 13_735.0375),
        ("0.5.18", deploy(drafts=1), 9_259.902325581397),
        ("0.5.12", deploy(), 15_955.85),
    ],
)
def test_a_full_token_has_its_published_bytes(
    version: str, deployment: Deployment, expected: float
) -> None:
    pools = sglang(version).pools(deployment)
    assert pools.bytes_per_full_token == pytest.approx(expected, abs=1e-9)


def test_the_log_of_september_2026_is_met() -> None:
    deployment = deploy(state_bytes=2, concurrency=64, window_ratio=0.1)
    engine = sglang("0.5.20")
    fixed = engine.pools(deployment).hca_state_bytes(64)
    memory = int(6_859_008 * 7_033.45 + fixed) + 1
    assert engine.capacity(deployment, memory).log_lines == SGLANG[1:]


@pytest.mark.parametrize(
    ("version", "deployment", "available", "fixed", "full"),
    [
        ("0.5.15", deploy("v4-pro", concurrency=64, window_ratio=0.15), 118.93, 1.01, 9_217_792),
        ("0.5.12", deploy(), 19.58, None, 1_317_632),
    ],
)
def test_published_lines_of_earlier_versions_are_met(
    version: str, deployment: Deployment, available: float, fixed: float | None, full: int
) -> None:
    """Memory is told to a hundredth of a GB: some memory that is told so gives the line."""
    engine = sglang(version)
    told = engine.pools(deployment).bytes_per_full_token
    state = "" if fixed is None else f"c128_state_fixed={fixed:.2f} GB, "
    lines = {
        engine.capacity(deployment, int((available + by / 10_000) * GIB)).log_lines[0]
        for by in range(-49, 50)
    }
    assert (
        f"DSV4 memory calculation: bytes_per_full_token={told:.2f}, "
        f"available_bytes={available:.2f} GB, {state}full_token={full}"
    ) in lines


@pytest.mark.parametrize(("version", "kept"), [("0.5.17", True), ("0.5.19", False)])
def test_a_request_holds_windows_of_its_whole_prompt_unless_it_gives_them_back(
    version: str, kept: bool
) -> None:
    """4,608 window slots bring ten times the full tokens, those of a window alone fewer.

    SGLang: SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS, on from 0.5.18. Pro on 8 x H200 of
    0.5.15 runs 35 requests of the cookbook's lengths, a tenth of the pool less a chunk.
    """
    engine, own = sglang(version), deploy("v4-pro", concurrency=64)
    unit = engine.pools(own).bytes_per_full_token
    fixed = sum(cost.fixed_bytes for cost in engine.costs(own))
    for slots in (None, "freed", "kept"):
        asked = replace(own, window_slots=slots)
        held = engine.request_bytes(asked, 4_608, in_flight=1) - fixed
        whole = slots == "kept" or (slots is None and kept)
        assert held == int((46_080 if whole else 7_936) * unit)
