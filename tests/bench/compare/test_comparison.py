"""Comparisons of made-up runs: which rows there are, what is said of them, and of all."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from dsv4kv.bench.compare.comparison import (
    Comparison,
    brought_by,
    compare,
    list_differences,
    load_side,
)
from dsv4kv.bench.compare.verdict import Verdict
from dsv4kv.errors import ConfigError
from dsv4kv.runs.schema import Case, Launch, RunRecord
from dsv4kv.runs.store import save_record
from dsv4kv.view.compare import explain
from tests.bench.compare.launched import (
    make_launched_case,
    make_launched_record,
    make_launches,
    make_side,
)
from tests.runs.records import H200, make_environment, make_failed_case, make_record

FLOOR = 0.01
SAME, FASTER, SLOWER, UNCLEAR = Verdict


def compared(before: RunRecord, after: RunRecord, **options: Any) -> Comparison:
    return compare(make_side("A", before), make_side("B", after), FLOOR, **options)


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    return {str(row.quantity): row.judgement.verdict for row in comparison.rows}


def test_a_quantity_of_next_to_no_time_has_no_row_until_it_takes_some() -> None:
    def with_tiny(record: RunRecord, factor: int) -> RunRecord:
        """A thousandth of the step's time, times the factor."""
        cases = []
        for case in record.cases:
            step = case.operations[0]
            tiny = step.model_copy(
                update={
                    "name": "tiny",
                    "samples_ns": [factor * max(1, n // 1000) for n in step.samples_ns],
                }
            )
            cases.append(case.model_copy(update={"operations": [*case.operations, tiny]}))
        return record.model_copy(update={"cases": cases})

    before, after = (with_tiny(make_launched_record(seed=seed), 1) for seed in (1, 2))
    found = compared(before, after)
    assert (found.small, found.losses) == (("tiny csa",), ())
    assert "tiny csa" not in verdicts(found)
    assert "below 0.5 % of the time, without a row: tiny csa" in explain(found)
    grown = compared(before, with_tiny(make_launched_record(seed=2), 1000))
    assert verdicts(grown)["tiny csa"] is SLOWER
    assert grown.conclude() is SLOWER


def test_an_operation_that_moves_other_bytes_a_call_is_not_judged() -> None:
    before = make_launched_record(seed=1)
    cases = [
        case.model_copy(
            update={
                "operations": [
                    each.model_copy(update={"bytes": [2 * size for size in each.bytes]})
                    if each.name == "flush"
                    else each
                    for each in case.operations
                ]
            }
        )
        for case in make_launched_record(seed=2, factors={"flush": 2.0}).cases
    ]
    found = compared(before, make_launched_record(cases=cases))
    (flush,) = (row for row in found.rows if row.quantity.name == "flush")
    assert flush.judgement.verdict is UNCLEAR
    assert flush.judgement.reason == "other work: 73.0 KiB against 146 KiB a call"
    assert flush.judgement.ratio == pytest.approx(2, rel=0.02)
    assert explain(found).endswith("; the mean is without other work (1 rows)")
    assert found.overall
    assert found.overall.verdict is SAME  # of the others: a mean over other work says nothing
    assert found.overall.ratio == pytest.approx(1, abs=0.01)


# ---- launches and cases that went wrong ---------------------------------------------------------


def crashed(launch: int) -> Launch:
    return make_launches(7)[launch].model_copy(
        update={"status": "crashed", "error": "killed by SIGSEGV"}
    )


def test_a_lost_launch_is_told_and_keeps_the_whole_unclear() -> None:
    before = make_launched_record(seed=1)
    launches = [*before.launches[:2], crashed(2), *before.launches[3:]]
    after = make_launched_record(
        seed=2, cases=[c for c in make_launched_record(seed=2).cases if c.launch != 2],
        launches=launches,
    )  # fmt: skip
    found = compared(before, after)
    assert found.losses == ("B: launch 2 crashed: killed by SIGSEGV",)
    assert {len(row.after.values) for row in found.rows} == {6}
    assert found.overall
    assert (found.overall.verdict, found.conclude()) == (SAME, UNCLEAR)


@pytest.mark.parametrize("status", ["failed", "incomplete", "skipped"])
def test_a_case_that_no_launch_brought_to_its_end_keeps_the_whole_unclear(status: Any) -> None:
    def with_case(seed: int, extra: Case) -> RunRecord:
        cases = make_launched_record(seed=seed).cases
        return make_launched_record(cases=[*cases, extra])

    whole = make_launched_case(0, {}, 1, axis={"batch": 9})
    bad = make_failed_case("no block is free", axis={"batch": 9}, status=status)
    found = compared(with_case(1, whole), with_case(2, bad))
    assert f"B: batch=9, launch 0 {status}: no block is free" in found.losses
    assert found.conclude() is UNCLEAR


@pytest.mark.parametrize(("status", "verdict"), [("failed", UNCLEAR), ("skipped", SAME)])
def test_a_case_that_fails_on_both_sides_is_a_loss_and_one_that_both_skip_is_none(
    status: Any, verdict: Verdict
) -> None:
    bad = make_failed_case("no block is free", axis={"batch": 9}, status=status)
    sides = [
        make_launched_record(cases=[*make_launched_record(seed=seed).cases, bad])
        for seed in (1, 2)
    ]
    assert compared(*sides).conclude() is verdict


# ---- unlike sides -------------------------------------------------------------------------------


def test_only_what_two_backends_bring_is_compared_with_one_verdict() -> None:
    def run(seed: int, **changes: Any) -> RunRecord:
        record = make_launched_record(seed=seed, factors={"flush": 1.0 + seed})
        return record.model_copy(
            update={"cases": [each.model_copy(update=changes) for each in record.cases]}
        )

    ours, theirs = run(1), run(2, backend="mine.py:gather_topk", foreign=["gather_topk"])
    sides = make_side("A", ours), make_side("B", theirs)
    assert brought_by(*sides) == ("gather_topk",)
    assert brought_by(sides[0], sides[0]) == ()
    found = compared(ours, theirs, only=brought_by(*sides))
    assert verdicts(found) == {"gather_topk csa": SAME}
    assert found.overall
    assert found.overall == found.rows[0].judgement
    assert found.conclude() is SAME
    assert compared(ours, theirs).conclude() is SLOWER
    with pytest.raises(ConfigError, match="--only attend: not measured on both sides"):
        compared(ours, theirs, only=["attend"])


def save(folder: Path, seed: int) -> Path:
    return save_record(make_launched_record(seed=seed, run_id=f"run-{seed}"), folder).path


def test_a_side_is_a_file_several_files_or_a_folder(tmp_path: Path) -> None:
    paths = [save(tmp_path, seed) for seed in range(3)]
    (tmp_path / "notes.txt").write_text("")
    assert [r.run_id for r in load_side(str(paths[1])).records] == ["run-1"]
    assert [r.run_id for r in load_side(f"{paths[2]},{paths[0]}").records] == ["run-2", "run-0"]
    assert [r.run_id for r in load_side(str(tmp_path)).records] == ["run-0", "run-1", "run-2"]
    with pytest.raises(ConfigError, match="has the run run-1 twice: name each run once"):
        load_side(f"{paths[1]},{paths[1]}")


@pytest.mark.parametrize("text", ["{},", ",{}", "{},,{}", ","])
def test_nothing_beside_a_comma_is_refused_and_not_taken_for_this_folder(
    tmp_path: Path, text: str
) -> None:
    path = str(save(tmp_path, 0))
    with pytest.raises(ConfigError, match="has a comma with no file on one side of it"):
        load_side(text.format(path, path))


def told(before: RunRecord, after: RunRecord) -> list[str]:
    return [str(d) for d in list_differences(make_side("A", before), make_side("B", after))]


def on(**environment: Any) -> RunRecord:
    return make_launched_record(environment=make_environment(**environment))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cpu": "Arm Neoverse-V2"}, "cpu: AMD EPYC 9554 against Arm Neoverse-V2"),
        ({"governor": "powersave"}, "governor: unknown against powersave"),
        ({"hostname_sha256": "1" * 64}, f"hostname_sha256: {'0' * 64} against {'1' * 64}"),
        ({"variables": {}}, "variables.OMP_NUM_THREADS: 1 against not there"),
        ({"gpu": H200}, "gpu.name: none against NVIDIA H200"),
        (
            {"versions": {"dsv4kv": "0.1.0", "torch": "2.14.0", "numpy": "2.4.6"}},
            "versions.torch: 2.13.0+cpu against 2.14.0",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_machine_or_software_is_told_by_field(
    changes: dict[str, Any], sentence: str
) -> None:
    assert f"machine: {sentence}" in told(on(), on(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"git_sha": "f" * 40},
        {"git_dirty": False},
        {"load_1min": 9.0},
        {"versions": make_environment().versions | {"dsv4kv": "0.2.0"}},
    ],
    ids=lambda value: next(iter(value)),
)
def test_another_revision_and_another_load_are_no_difference(changes: dict[str, Any]) -> None:
    assert told(on(), on(**changes)) == []


def test_a_side_that_mixes_machines_is_told_even_if_the_other_mixes_the_same() -> None:
    sides = [make_side(name, on(cpu="one"), on(cpu="another")) for name in "AB"]
    assert [str(d) for d in list_differences(*sides)] == [
        "machine: cpu: one or another against one or another"
    ]


CALLS = 51


def in_turns(case: Case) -> Case:
    assert case.totals
    return case.model_copy(update={"totals": case.totals.model_copy(update={"steps_in_turns": 9})})


def moody_record(
    seed: int,
    factors: dict[str, float] | None = None,
    *,
    order: tuple[int, ...] = tuple(range(7)),
    took_turns: bool = True,
) -> RunRecord:
    """Seven launches on a machine that is several times as slow at times, call by call."""
    cases = []
    for launch, pair in enumerate(order):
        mood = Random(f"mood {pair}")
        hour = mood.uniform(1, 2)
        moods = [hour * mood.choice((1.0, 1.7, 3.0)) for _ in range(CALLS)]
        case = make_launched_case(launch, factors or {}, seed)
        operations = [
            operation.model_copy(
                update={
                    "samples_ns": [
                        round(ns * m) for ns, m in zip(operation.samples_ns, moods, strict=True)
                    ]
                }
            )
            for operation in case.operations
        ]
        case = case.model_copy(update={"operations": operations, "latencies": []})
        cases.append(in_turns(case) if took_turns else case)
    launches = [
        each.model_copy(update={"pair": f"pair-{pair}"})
        for each, pair in zip(make_launches(len(order)), order, strict=True)
    ]
    return make_record(*cases, launches=launches, run_id=f"run-{seed}")


def test_what_the_machine_did_to_both_launches_of_a_pair_cancels() -> None:
    found = compared(moody_record(1), moody_record(2, {"flush": 1.05}))
    assert found.in_turns
    assert verdicts(found) == {
        "gather_topk csa": SAME,
        "flush csa": SLOWER,
        "window_insert csa": SAME,
    }
    ratios = {row.quantity.name: row.judgement.ratio for row in found.rows}
    assert ratios["flush"] == pytest.approx(1.05, abs=0.01)
    assert "interleaved steps" in explain(found)


def test_a_pair_of_which_one_knew_of_no_turns_is_no_pair() -> None:
    """As of a revision that is older than turns."""
    found = compared(moody_record(1), moody_record(2, took_turns=False))
    assert not found.in_turns
