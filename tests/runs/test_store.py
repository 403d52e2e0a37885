"""Records as files: nothing lost, nothing half-written, and a sentence for every bad file."""

import errno
import json
import re
import stat
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import RecordError
from dsv4kv.runs.quantities import allocated_bytes, gather_rate, latency_median
from dsv4kv.runs.store import (
    DIGEST,
    Entry,
    choose,
    digest,
    dumps,
    list_entries,
    load_record,
    loads,
    new_run_id,
    remove,
    save_record,
)
from dsv4kv.view.exports import to_rows
from dsv4kv.view.runs import report_record
from tests.runs.records import (
    make_case,
    make_environment,
    make_failed_case,
    make_operation,
    make_record,
    make_sweep_cases,
)
from tests.runs.test_gpu_record import make_gpu_case
from tests.view.terminal import shown


@pytest.fixture
def fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for the time of a test."""
    folder = tmp_path / "system-temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def edited(path: Path, **changes: Any) -> Path:
    """A saved record with some top-level values changed, and the digest that goes with them."""
    return sealed(path, json.loads(dumps(make_record())) | changes)


def sealed(path: Path, document: dict[str, Any]) -> Path:
    """A file of a document whose digest is right."""
    del document[DIGEST]
    path.write_text(json.dumps(document | {DIGEST: digest(document)}))
    return path


@pytest.mark.parametrize("cases", [[], make_sweep_cases()], ids=["one case", "sweep"])
def test_a_saved_record_loads_equal(tmp_path: Path, cases: list[Any]) -> None:
    record = make_record(*cases)
    saved = save_record(record, tmp_path / "new" / "folder")
    assert saved.problem is None
    assert saved.path == tmp_path / "new" / "folder" / f"{record.run_id}.json"
    assert load_record(saved.path) == record


def test_saving_leaves_nothing_but_the_record(tmp_path: Path) -> None:
    saved = save_record(make_record(), tmp_path)
    assert list(tmp_path.iterdir()) == [saved.path]
    assert saved.path.stat().st_mode & stat.S_IRUSR


def test_saving_again_replaces_the_record(tmp_path: Path) -> None:
    save_record(make_record(status="incomplete"), tmp_path)
    saved = save_record(make_record(status="complete"), tmp_path)
    assert load_record(saved.path).status == "complete"
    assert list(tmp_path.iterdir()) == [saved.path]


def test_a_folder_that_cannot_be_made_falls_back_to_the_temporary_folder(
    tmp_path: Path, fallback: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    saved = save_record(make_record(), tmp_path / "file" / "results")
    assert saved.path.parent == fallback
    assert load_record(saved.path) == make_record()
    assert saved.problem == (
        f"{tmp_path / 'file' / 'results'} cannot be written (Not a directory): "
        f"the record is saved in {fallback} instead."
    )


def test_a_full_disk_falls_back_and_leaves_no_half_file(
    tmp_path: Path, fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, except_for=fallback)
    folder = tmp_path / "results"
    saved = save_record(make_record(), folder)
    assert saved.path.parent == fallback
    assert saved.problem is not None
    assert "No space left on device" in saved.problem
    assert list(folder.iterdir()) == []


def test_a_full_disk_keeps_the_record_that_was_there(
    tmp_path: Path, fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = save_record(make_record(), tmp_path / "results").path
    fill_disk(monkeypatch, except_for=fallback)
    save_record(make_record(status="incomplete"), tmp_path / "results")
    assert load_record(before).status == "complete"


def test_with_no_folder_to_write_the_sentence_names_both_reasons(
    tmp_path: Path, fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, except_for=tmp_path / "nowhere")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match=r"Not a directory.*nor.*No space left.*TMPDIR"):
        save_record(make_record(), tmp_path / "file" / "results")
    assert list(fallback.iterdir()) == []


def fill_disk(monkeypatch: pytest.MonkeyPatch, except_for: Path) -> None:
    """Renames fail outside one folder, as the last write of a file does on a full disk."""
    replace = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path.parent == except_for:
            return replace(path, target)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)


def test_every_list_of_samples_is_one_line() -> None:
    record = make_record()
    lines = dumps(record).splitlines()
    operation = record.cases[0].operations[0]
    line = f'     "samples_ns": {json.dumps(operation.samples_ns)},'
    assert line in lines
    assert max(line.count("{") for line in lines) == 1
    document = json.loads("\n".join(lines))
    assert len(document.pop(DIGEST)) == 64
    assert document == record.model_dump(mode="json")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), values))
def test_any_configuration_survives_the_text_form(config: dict[str, Any]) -> None:
    record = make_record(make_case(config=config, operations=[]))
    assert loads(dumps(record), "text") == record


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_has_no_word_for_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        make_environment(load_1min=number)


def refusal(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        load_record(path)
    return str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone.json"
    assert refusal(path).startswith(f"{path} does not exist: name a file")


def test_a_folder_is_no_record(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} is a folder: name one of the .json files in it."


def test_a_file_in_the_way_of_the_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be read (Not a directory)" in refusal(tmp_path / "file" / "run.json")


def test_a_file_cut_short_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(dumps(make_record())[:400])
    line = dumps(make_record())[:400].count("\n") + 1
    assert refusal(path).startswith(f"{path}:{line}: not JSON")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b'{"schema_version": NaN}', b"[" * 200_000, b"1" * 5000]
)
def test_bytes_that_are_no_record_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    assert "not a run record" in refusal(path)


@pytest.mark.parametrize("content", ["[]", "3", '"text"', "null", "{}", '{"cases": []}'])
def test_other_json_is_not_a_record(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    assert refusal(path) == f"{path} is JSON but not a run record: it has no schema_version."


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_an_unknown_version_is_refused_with_the_known_one(tmp_path: Path, version: Any) -> None:
    path = edited(tmp_path / "run.json", schema_version=version)
    assert f"schema version {version!r}; this dsv4kv reads version 1:" in refusal(path)


def test_a_wrong_value_is_refused_with_its_place(tmp_path: Path) -> None:
    path = edited(tmp_path / "run.json", seed="zero", status="fine", extra=1)
    message = refusal(path)
    assert message.startswith(f"{path} is not a whole run record: status: ")
    assert message.endswith("(2 more).")


def test_text_is_not_taken_for_a_number(tmp_path: Path) -> None:
    assert ": seed: " in refusal(edited(tmp_path / "run.json", seed="7"))


def test_an_operation_whose_lists_differ_in_length_is_refused(tmp_path: Path) -> None:
    path = save_record(make_record(make_case(operations=[make_operation()])), tmp_path).path
    document = json.loads(path.read_text())
    document["cases"][0]["operations"][0]["bytes"] = [1, 2]
    sealed(path, document)
    assert "gather_topk (csa) has 400 samples_ns, 400 entries and 2 bytes" in refusal(path)


LAUNCH = {
    "launch": 0, "started_utc": "2026-11-21T04:19:03Z", "ended_utc": "2026-11-21T04:19:09Z",
    "status": "complete", "error": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"started_utc": ""}, "started_utc: Value error, Invalid isoformat string"),
        ({"started_utc": "2026-11-21T04:19:03"}, "has no time zone"),
        ({"launches": [LAUNCH | {"ended_utc": "soon"}]}, "launches.0.ended_utc: "),
        ({"launches": [LAUNCH | {"launch": 1}]}, "not numbered from 0"),
        ({"run_id": "../../victim"}, "run_id: String should match pattern"),
    ],
    ids=str,
)
def test_names_moments_and_launches_that_make_no_sense_are_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(edited(tmp_path / "run.json", **changes))


@pytest.mark.parametrize("launches", [[], [LAUNCH]])
@pytest.mark.parametrize("launch", [-1, 1, 10**19])
def test_a_case_of_a_launch_that_is_not_there_is_refused(
    tmp_path: Path, launch: int, launches: list[Any]
) -> None:
    case = json.loads(dumps(make_record()))["cases"][0] | {"launch": launch}
    path = edited(tmp_path / "run.json", cases=[case], launches=launches)
    assert f"cases of launch {launch}, and there are 1 launches" in refusal(path)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [("memcpy", "bytes", 0), ("cache", "sharing", ""), ("cache", "sharing", "table")],
)
def test_a_value_that_nothing_can_be_told_of_is_refused(
    tmp_path: Path, part: str, field: str, value: Any
) -> None:
    case = json.loads(dumps(make_record()))["cases"][0]
    case[part][field] = value
    assert f"cases.0.{part}.{field}: " in refusal(edited(tmp_path / "run.json", cases=[case]))


# ---- what a hand has changed --------------------------------------------------------------------


def test_a_sample_changed_by_hand_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = save_record(make_record(), tmp_path).path
    sample = make_record().cases[0].operations[0].samples_ns[7]
    path.write_text(path.read_text().replace(f" {sample},", f" {sample // 2},", 1))
    assert refusal(path).startswith(
        f"{path} was changed after it was written: its {DIGEST} is not that of its values."
    )


def test_a_record_without_its_digest_is_refused(tmp_path: Path) -> None:
    path = save_record(make_record(), tmp_path).path
    document = json.loads(path.read_text())
    del document[DIGEST]
    path.write_text(json.dumps(document))
    assert refusal(path).startswith(f"{path} has no {DIGEST}, which dsv4kv writes")


def test_a_case_taken_out_by_hand_is_refused(tmp_path: Path) -> None:
    path = save_record(make_record(*make_sweep_cases()), tmp_path).path
    document = json.loads(path.read_text())
    document["cases"].pop()
    path.write_text(json.dumps(document))
    assert "was changed after it was written" in refusal(path)


def test_a_record_laid_out_anew_is_still_the_same(tmp_path: Path) -> None:
    path = save_record(make_record(), tmp_path).path
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True, indent=3))
    assert load_record(path) == make_record()


def test_a_change_that_is_meant_is_read_once_the_digest_is_gone(tmp_path: Path) -> None:
    assert load_record(edited(tmp_path / "run.json", seed=7)).seed == 7


@given(st.integers(min_value=0, max_value=len(dumps(make_record())) - 3))
def test_a_record_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(RecordError, match=r"cut short|not a run record"):
        loads(dumps(make_record())[:length], "run.json")


def test_a_record_with_half_a_character_is_refused(tmp_path: Path) -> None:
    path = edited(tmp_path / "run.json", run_id="\ud800")
    assert "is not a run record" in refusal(path)


# ---- a folder of records ---


def test_every_record_of_a_folder_is_listed_by_name(tmp_path: Path) -> None:
    save_record(make_record(make_case(), run_id="2-second"), tmp_path)
    save_record(make_record(make_case(status="incomplete"), run_id="1-first"), tmp_path)
    (tmp_path / "3.json").symlink_to("3.json")
    (tmp_path / ".4.json.4711-abcd.tmp").write_text('{"schema_version": 1')
    first, second = list_entries(tmp_path)
    assert (first.file, second.file) == ("1-first.json", "2-second.json")
    assert first.summary
    assert (first.summary.run_id, first.summary.status) == ("1-first", "incomplete")
    assert (first.summary.cases, first.summary.launches) == (1, 1)
    assert first.summary.backends == ["cpu"]


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        list_entries(tmp_path / "gone")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "is JSON but not a run record: it has no schema_version."),
        ('{"schema_version": 1}', "is not a run record"),
        ('{"schema_version": 1, "cases": 3}', "is not a run record"),
        ("{", "not JSON"),
    ],
)
def test_a_file_that_is_no_record_is_listed_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "notes.json").write_text(text)
    (entry,) = list_entries(tmp_path)
    assert entry.summary is None
    assert reason in str(entry.problem)


NOW = datetime(2026, 11, 21, tzinfo=UTC)
STATUSES = ("complete", "failed", "incomplete", "complete")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs of the 1st, 8th, 15th and 20th, a note, and a baseline."""
    for day, status in zip((1, 8, 15, 20), STATUSES, strict=True):
        record = make_record(
            make_case(status=status, error="why"),
            run_id=f"run-{day:02}",
            started_utc=f"2026-11-{day:02}T12:00:00+00:00",
        )
        save_record(record, tmp_path)
    (tmp_path / "notes.json").write_text("[]")
    (tmp_path / "baselines").mkdir()
    save_record(make_record(run_id="main"), tmp_path / "baselines")
    return tmp_path


def days(entries: list[Entry]) -> list[int]:
    return [int(entry.file[4:6]) for entry in entries]


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"keep": 1}, [1, 8, 15]),
        ({"keep": 0}, [1, 8, 15, 20]),
        ({"keep": 9}, []),
        ({"older_than_days": 10}, [1, 8]),
        ({"older_than_days": 0}, [1, 8, 15, 20]),
        ({"older_than_days": 3_000_000}, []),
        ({"older_than_days": 10**30}, []),
        ({"status": "failed"}, [8]),
        ({"status": "complete", "keep": 2}, [1]),
        ({"older_than_days": 10, "keep": 3}, [1]),
    ],
    ids=str,
)
def test_runs_go_that_fit_every_condition(
    folder: Path, options: dict[str, object], chosen: list[int]
) -> None:
    assert days(choose(list_entries(folder), now=NOW, **options)) == chosen  # type: ignore[arg-type]


def test_removing_leaves_everything_else(folder: Path) -> None:
    remove(folder, choose(list_entries(folder), keep=1, now=NOW))
    assert [entry.file for entry in list_entries(folder)] == ["notes.json", "run-20.json"]
    assert (folder / "baselines" / "main.json").exists()


def test_a_run_that_is_gone_already_is_no_trouble(folder: Path) -> None:
    chosen = choose(list_entries(folder), keep=0, now=NOW)
    (folder / chosen[0].file).unlink()
    remove(folder, chosen)
    assert [entry.file for entry in list_entries(folder)] == ["notes.json"]


# ---- names of runs, and records of before


MOMENT = datetime(2026, 11, 21, 4, 19, 3, tzinfo=UTC)


def test_a_name_tells_time_and_configuration() -> None:
    assert re.fullmatch(r"20261121T041903Z-default-[0-9a-f]{6}", new_run_id("default", MOMENT))


def test_the_time_is_utc_wherever_the_run_was() -> None:
    there = MOMENT.astimezone(timezone(timedelta(hours=8)))
    assert new_run_id("default", there).startswith("20261121T041903Z-")


def test_two_runs_in_one_second_have_two_names() -> None:
    assert len({new_run_id("default", MOMENT) for _ in range(50)}) == 50


@given(st.text())
def test_any_configuration_name_gives_a_safe_file_name(name: str) -> None:
    assert re.fullmatch(
        r"20261121T041903Z-[A-Za-z0-9._-]{1,60}-[0-9a-f]{6}", new_run_id(name, MOMENT)
    )


def test_a_path_as_name_stays_inside_the_folder() -> None:
    assert new_run_id("../../etc/passwd", MOMENT)[:-7] == "20261121T041903Z-etc-passwd"


DATA = Path(__file__).parent / "data"
FIRST = DATA / "record-v1-first.json"  # before launches, telemetry and the digest


def test_the_first_records_load_with_what_they_did_not_know_at_its_default() -> None:
    record = load_record(FIRST)
    assert "launches" not in json.loads(FIRST.read_text())
    assert record.launches == []
    assert {case.launch for case in record.cases} == {0}
    samples_ns = record.cases[0].operations[0].samples_ns
    assert samples_ns == [417_000, 421_500, 419_250, 430_000, 418_100, 425_000]


def test_the_first_records_are_told_and_exported_as_any() -> None:
    record = load_record(FIRST)
    assert "gather_topk" in shown(*report_record(record))
    assert [row["name"] for row in to_rows(record)] == ["gather_topk", "step"]


def test_the_first_records_can_be_saved_anew_with_a_digest() -> None:
    record = load_record(FIRST)
    assert loads(dumps(record), "anew") == record


def test_a_case_is_told_by_its_step_its_cold_gathers_and_its_memory() -> None:
    case = make_gpu_case()
    time, rate = latency_median(case, "decode_graph_device"), gather_rate(case)
    assert time is not None
    assert rate is not None
    assert time.value == 1_000_000
    assert rate.value == 4000
    assert case.cache is not None
    assert allocated_bytes(case) == sum(pool.allocated_bytes for pool in case.cache.pools)


def test_what_was_not_measured_is_none() -> None:
    assert latency_median(make_case(), "decode_graph_device") is None
    assert gather_rate(make_failed_case()) is None
    assert allocated_bytes(make_failed_case()) is None
