"""Comparisons of made-up runs: which rows there are, what is said of them, and of all."""

from pathlib import Path
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
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import save_record
from dsv4kv.view.compare import explain
from tests.bench.compare.launched import make_launched_record, make_launches, make_side
from tests.runs.records import H200, make_environment, make_failed_case

FLOOR = 0.01
SAME, FASTER, SLOWER, UNCLEAR = Verdict


def compared(before: RunRecord, after: RunRecord, **options: Any) -> Comparison:
    return compare(make_side("A", before), make_side("B", after), FLOOR, **options)


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    return {str(row.quantity): row.judgement.verdict for row in comparison.rows}


def test_a_quantity_of_next_to_no_time_has_no_row_until_it_takes_some() -> None:
    def with_tiny(record: RunRecord, factor: int) -> RunRecord:
        """A thousandth of the step's time, times the factor."""
        record = record.model_copy(deep=True)
        for case in record.cases:
            step = case.operations[0]
            samples_ns = [factor * max(1, n // 1000) for n in step.samples_ns]
            tiny = step.model_copy(update={"name": "tiny", "samples_ns": samples_ns})
            case.operations.append(tiny)
        return record

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
    after = make_launched_record(seed=2, factors={"flush": 2.0})
    for each in (each for case in after.cases for each in case.operations if each.name == "flush"):
        each.bytes[:] = [2 * size for size in each.bytes]
    found = compared(before, after)
    (flush,) = (row for row in found.rows if row.quantity.name == "flush")
    assert flush.judgement.verdict is UNCLEAR
    assert flush.judgement.reason == "other work: 73.0 KiB against 146 KiB a call"
    assert flush.judgement.ratio == pytest.approx(2, rel=0.02)
    assert explain(found).endswith("; the mean is without other work (1 rows)")
    assert found.overall
    assert found.overall.verdict is SAME  # of the others: a mean over other work says nothing
    assert found.overall.ratio == pytest.approx(1, abs=0.01)


# ---- launches and cases that went wrong ---------------------------------------------------------


def test_a_lost_launch_is_told_and_keeps_the_whole_unclear() -> None:
    before = make_launched_record(seed=1)
    launches, lost = make_launches(7), {"status": "crashed", "error": "killed by SIGSEGV"}
    launches[2] = launches[2].model_copy(update=lost)
    after = make_launched_record(
        seed=2, cases=[c for c in make_launched_record(seed=2).cases if c.launch != 2],
        launches=launches,
    )  # fmt: skip
    found = compared(before, after)
    assert found.losses == ("B: launch 2 crashed: killed by SIGSEGV",)
    assert {len(row.after.values) for row in found.rows} == {6}
    assert found.overall
    assert (found.overall.verdict, found.conclude()) == (SAME, UNCLEAR)


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


@pytest.mark.parametrize("text", ["{},", "{},,{}"])
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
        ({"git_sha": "f" * 40, "git_dirty": False, "load_1min": 9.0}, None),
        ({"versions": make_environment().versions | {"dsv4kv": "0.2.0"}}, None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_machine_or_software_is_told_by_field_and_another_revision_or_load_is_not(
    changes: dict[str, Any], sentence: str | None
) -> None:
    found = told(on(), on(**changes))
    assert f"machine: {sentence}" in found if sentence else found == []


def test_a_side_that_mixes_machines_is_told_even_if_the_other_mixes_the_same() -> None:
    sides = [make_side(name, on(cpu="one"), on(cpu="another")) for name in "AB"]
    assert [str(d) for d in list_differences(*sides)] == [
        "machine: cpu: one or another against one or another"
    ]
