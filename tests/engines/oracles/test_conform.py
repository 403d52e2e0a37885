"""``dsv4kv conform`` on the engines' own packages: what they are known for, and planted faults."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4kv.diagnose.conform.check import Driven, Verdict, conform, drive
from dsv4kv.diagnose.conform.check import test_file as file_of
from dsv4kv.diagnose.conform.sequences import Operation, Sequence
from tests.engines.oracles.asking import HERE, needs_engines

FOLDER = Path(os.environ.get("DSV4KV_ENGINES", "."))
PYTHON = str(FOLDER / "bin" / "python")
pytestmark = needs_engines


def verdict_on(package: str, operations: int) -> Verdict:
    with drive(package.partition("-")[0], PYTHON, FOLDER / package) as manager:
        return conform(manager, operations, seed=0)


@pytest.fixture(scope="module")
def vllm() -> Iterator[Driven]:
    with drive("vllm", PYTHON, FOLDER / "vllm") as manager:
        yield manager


@pytest.mark.parametrize("package", ["vllm", "sglang", "sglang-0.5.22"])
def test_the_newest_keep_every_promise(package: str) -> None:
    assert not verdict_on(package, 10_000).failures


def test_hits_of_nothing_with_drafts_are_found_before_their_fix_and_not_after(
    tmp_path: Path,
) -> None:
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
    case = tmp_path / "case.py"
    case.write_text(file_of("vllm", "0.22.1", found) + "\n\ntest_hits()\n")
    failed = {
        package: subprocess.run(
            [PYTHON, case],
            env=os.environ | {"PACKAGE": str(FOLDER / package)},
            capture_output=True,
            text=True,
            check=False,
        ).stderr
        for package in ("vllm-0.22.1", "vllm-0.23.0")
    }
    assert "AssertionError: {'hits': ('a prompt of" in failed["vllm-0.22.1"]
    assert "AssertionError" not in failed["vllm-0.23.0"]


HOSTED = {
    "blocks": 137,
    "context": 1600,
    "chunk_tokens": 256,
    "running": 8,
    "ahead": False,
    "retention": 0,
    "speculation": "none",
    "draft_tokens": 1,
    "host_chunks": 8000,
    "host_policy": "lru",
    "host_threshold": 0,
    "host_prompts_only": True,
    "host_sync_bytes": 0,
}
ROOM = {"blocks": 600}
STUCK = (
    ("admit", 3, [11, 12, 13, 15], 978, 1),
    ("admit", 4, [11, 16, 17, 18, 20], 1030, 1),
    ("admit", 7, [21, 22, 23], 768, 1),
    ("admit", 8, [21, 22, 23, 24, 25, 26], 1536, 1),
    ("admit", 9, [11, 16, 34], 527, 1),
    ("admit", 11, [21, 22, 23, 40, 42], 1079, 1),
)
KNOWN = ("reads", "ends", "calls")
EMPTIED = (("admit", 13, [18, 22], 354, 5), ("step", 0), ("step", 0), ("empty",))
DRAFTS = {"blocks": 238, "chunk_tokens": 512, "retention": 4096, "speculation": "mtp"}
ANSWERED = (("admit", 30, [23], 189, 20), ("admit", 31, [1, 2, 21], 589, 1))
ANSWERS = {"blocks": 238, "ahead": True, "retention": None, "host_prompts_only": False}
ABORTED = (
    ("admit", 0, [1, 2, 3], 700, 1),
    *[("step", 0)] * 5,
    *[("land", 0)] * 5,
    ("step", 0),
    ("reset",),
    ("admit", 1, [1, 2, 3], 700, 1),
    ("step", 0),
    ("abort", 1),
    ("preempt",),
)
TWICE = (("admit", 7, [6, 8, 10], 718, 1), ("step", 0), ("empty",), ("empty",))


@pytest.mark.parametrize(
    ("changed", "operations", "kind", "says"),
    [
        ({}, STUCK, "ends", "requests 9, 11 get no more tokens in 300 steps"),
        (ROOM, STUCK, "", ""),
        (ANSWERS, ANSWERED, "reads", "copied as tokens to 204 of group 3, and holds nothing"),
        (ANSWERS | {"host_prompts_only": True}, ANSWERED, "", ""),
        (ANSWERS | {"retention": 0}, ANSWERED, "", ""),
        (DRAFTS, EMPTIED, "reads", "which is still being copied"),
        (DRAFTS, EMPTIED[:-1], "", ""),
        (ROOM | {"ahead": True}, TWICE, "calls", "assert not self._current_batch_jobs_to_flush"),
        (ROOM | {"ahead": True}, TWICE[:-1], "", ""),
        (ROOM, ABORTED, "", ""),
    ],
)
def test_what_is_known_of_offloading_in_vllm_033(
    vllm: Driven,
    changed: dict[str, object],
    operations: tuple[Operation, ...],
    kind: str,
    says: str,
) -> None:
    """As the docs tell it, and not without what makes it."""
    broken = vllm.ask(Sequence(HOSTED | changed, operations))["broken"]
    assert [*broken] == [kind] * bool(kind)
    assert says in broken.get(kind, ("",))[0]


def test_with_host_memory_nothing_else_is_found_in_vllm_033(vllm: Driven) -> None:
    assert conform(vllm, 4000, seed=0, host=True).failures.keys() <= {*KNOWN}


def test_with_host_memory_nothing_is_found_in_sglang_0523() -> None:
    with drive("sglang", PYTHON, FOLDER / "sglang") as manager:
        assert not conform(manager, 4000, seed=0, host=True).failures


def verdict_on_planted(engine: str, fault: str, operations: int) -> Verdict:
    """Of a manager that ``leaking`` has; with host memory, where its fault lies there."""
    command: list[str | Path] = [PYTHON, HERE / "leaking.py", fault, FOLDER / engine]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"VLLM_CONFIGURE_LOGGING": "0"},
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        manager = Driven(engine, process.stdin, process.stdout)
        verdict = conform(manager, operations, seed=0, host=fault != engine)
        process.stdin.close()
    return verdict


def test_a_store_that_is_said_to_have_ended_too_early_is_found_and_shrunk() -> None:
    verdict = verdict_on_planted("sglang", "hasty", 4000)
    failure = verdict.failures["reads"]
    assert "changes under a copy of it" in failure.says
    assert len(failure.sequence.operations) <= 20


@pytest.mark.parametrize(
    ("engine", "fault", "operations"),
    [
        ("vllm", "vllm", 200_000),
        ("vllm", "host", 30_000),
        ("sglang", "sglang", 20_000),
        ("sglang", "hicache", 10_000),
    ],
)
def test_a_block_lost_now_and_then_is_found_and_shrunk(
    engine: str, fault: str, operations: int
) -> None:
    """Of vLLM in one sequence of some thousand, of 200,000 operations."""
    verdict = verdict_on_planted(engine, fault, operations)
    assert verdict.failures.keys() - {"blocks"} <= ({*KNOWN} if fault == "host" else set())
    assert verdict.broken["blocks"] <= verdict.sequences // 10
    failure = verdict.failures["blocks"]
    assert "are lost: neither free nor held" in failure.says
    assert len(failure.sequence.operations) <= 20
