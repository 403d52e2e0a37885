"""``dsv4kv conform`` on the engines' own packages: what they are known for, and planted faults."""

import os
import subprocess
from pathlib import Path

import pytest

from dsv4kv.diagnose.conform import Driven, Verdict, conform, drive
from tests.engines.oracles.asking import HERE, needs_engines

FOLDER = Path(os.environ.get("DSV4KV_ENGINES", "."))
PYTHON = str(FOLDER / "bin" / "python")
pytestmark = needs_engines


def verdict_on(package: str, operations: int) -> Verdict:
    with drive(package.partition("-")[0], PYTHON, FOLDER / package) as manager:
        return conform(manager, operations, seed=0)


@pytest.mark.parametrize("package", ["vllm", "sglang", "sglang-0.5.22"])
def test_the_newest_keep_every_promise(package: str) -> None:
    assert not verdict_on(package, 10_000).failures


def test_hits_of_nothing_with_drafts_are_found_before_their_fix_and_not_after() -> None:
    """vllm#44082, in 0.23; both free windows that rejected drafts go back to (vllm#47728)."""
    before, after = (verdict_on(package, 4000) for package in ("vllm-0.22.1", "vllm-0.23.0"))
    assert before.failures.keys() == {"hits", "reads"}
    assert after.failures.keys() == {"reads"}
    early = after.failures["reads"].sequence.settings
    assert early["ahead"]
    assert early["speculation"] != "none"
    found = before.failures["hits"]
    assert found.sequence.settings["speculation"] == "mtp+connector"
    assert len(found.sequence.operations) == 2
    assert "hits 0 of them" in found.says


@pytest.mark.parametrize(("engine", "operations"), [("vllm", 200_000), ("sglang", 20_000)])
def test_a_block_lost_now_and_then_is_found_and_shrunk(engine: str, operations: int) -> None:
    """Of vLLM in one sequence of some thousand, of 200,000 operations."""
    with subprocess.Popen(
        [PYTHON, HERE / "leaking.py", engine, FOLDER / engine],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"VLLM_CONFIGURE_LOGGING": "0"},
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        verdict = conform(Driven(engine, process.stdin, process.stdout), operations, seed=0)
        process.stdin.close()
    assert verdict.failures.keys() == {"blocks"}
    assert verdict.broken["blocks"] <= verdict.sequences // 10
    failure = verdict.failures["blocks"]
    assert "are lost: neither free nor held" in failure.says
    assert len(failure.sequence.operations) <= 20
