"""Records as files: nothing lost, nothing half-written, and a sentence for every bad file."""

import errno
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsv4kv.errors import RecordError
from dsv4kv.runs import store
from dsv4kv.runs.parts import Telemetry
from tests.runs.records import make_case, make_environment, make_record, make_sweep_cases
from tests.runs.telemetries import make_telemetry


@pytest.fixture
def fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for the time of a test."""
    folder = tmp_path / "system-temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def edited(path: Path, **changes: Any) -> Path:
    """A saved record with some top-level values changed, and the digest that goes with them."""
    return sealed(path, json.loads(store.dumps(make_record())) | changes)


def sealed(path: Path, document: dict[str, Any]) -> Path:
    """A file of a document whose digest is right."""
    del document[store.DIGEST]
    path.write_text(json.dumps(document | {store.DIGEST: store.digest(document)}))
    return path


@pytest.mark.parametrize("cases", [[], make_sweep_cases()], ids=["one case", "sweep"])
def test_a_saved_record_loads_equal(tmp_path: Path, cases: list[Any]) -> None:
    record = make_record(*cases)
    saved = store.save_record(record, tmp_path / "new" / "folder")
    assert saved.problem is None
    assert saved.path == tmp_path / "new" / "folder" / f"{record.run_id}.json"
    assert store.load_record(saved.path) == record


def test_fields_of_version_1_that_were_dropped_are_passed_over(tmp_path: Path) -> None:
    record = make_record()
    document = json.loads(store.dumps(record)) | {"schema_version": 1}
    document["cases"][0]["totals"] |= {"resumed_requests": 3, "read_ns": 7}
    assert store.load_record(sealed(tmp_path / "1.json", document)) == record
    document = json.loads(store.dumps(record))
    document["cases"][0]["totals"] |= {"resumed_requests": 3}
    with pytest.raises(RecordError, match="resumed_requests"):
        store.load_record(sealed(tmp_path / "2.json", document))


def test_a_folder_that_cannot_be_made_falls_back(tmp_path: Path, fallback: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    saved = store.save_record(make_record(), tmp_path / "file" / "results")
    assert saved.path.parent == fallback
    assert store.load_record(saved.path) == make_record()
    assert saved.problem == (
        f"{tmp_path / 'file' / 'results'} cannot be written (Not a directory): "
        f"the record is saved in {fallback} instead."
    )


def test_a_full_disk_falls_back_and_leaves_no_half_file(
    tmp_path: Path, fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, except_for=fallback)
    folder = tmp_path / "results"
    saved = store.save_record(make_record(), folder)
    assert saved.path.parent == fallback
    assert saved.problem is not None
    assert "No space left on device" in saved.problem
    assert list(folder.iterdir()) == []


def test_with_no_folder_to_write_the_sentence_names_both_reasons(
    tmp_path: Path, fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, except_for=tmp_path / "nowhere")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match=r"Not a directory.*nor.*No space left.*TMPDIR"):
        store.save_record(make_record(), tmp_path / "file" / "results")
    assert list(fallback.iterdir()) == []


def fill_disk(monkeypatch: pytest.MonkeyPatch, except_for: Path) -> None:
    """Renames fail outside one folder, as the last write of a file does on a full disk."""
    replace = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path.parent == except_for:
            return replace(path, target)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)


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
    assert store.loads(store.dumps(record), "text") == record


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_has_no_word_for_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        make_environment(load_1min=number)


def refusal(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        store.load_record(path)
    return str(caught.value)


WHOLE = store.dumps(make_record())
SAMPLE = make_record().cases[0].operations[0].samples_ns[7]
UNSEALED = {name: v for name, v in json.loads(WHOLE).items() if name != store.DIGEST}
CHANGED = f" was changed after it was written: its {store.DIGEST} does not match its values."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, " cannot be read (No such file or directory): name a file"),
        (WHOLE[:400].encode(), f":{WHOLE[:400].count(chr(10)) + 1}: not JSON"),
        (b"\xff\xfe\x00", " is not a run record"),
        (b'{"schema_version": NaN}', " is not a run record"),
        (b"[" * 200_000, " is not a run record"),
        (b"1" * 5000, " is not a run record"),
        (b'{"schema_version": 1, "x": 1' + b"0" * 400 + b"}", " is not a run record"),
        (WHOLE.replace(f" {SAMPLE},", " 7,", 1).encode(), CHANGED),
        (WHOLE.replace(f" {SAMPLE},", " 1e999,", 1).encode(), CHANGED),
        (json.dumps(UNSEALED).encode(), f" has no {store.DIGEST}, which dsv4kv writes"),
    ],
    ids=["absent", "cut", "bytes", "NaN", "deep", "digits", "large", "7", "1e999", "unsealed"],
)
def test_a_changed_file_is_refused(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content)
    assert refusal(path).startswith(f"{path}{reason}")


LAUNCH = {
    "launch": 0, "started_utc": "2026-11-21T04:19:03Z", "ended_utc": "2026-11-21T04:19:09Z",
    "status": "complete", "error": None,
}  # fmt: skip
CASE = json.loads(WHOLE)["cases"][0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"schema_version": n}, f"schema version {n!r}; this dsv4kv reads versions 1 and 2:")
          for n in (0, 3, "1", None)),
        ({"seed": "zero", "status": "fine", "extra": 1}, "run record: status: .*[(]2 more[)][.]$"),
        ({"started_utc": ""}, "started_utc: Invalid isoformat string"),
        ({"started_utc": "2026-11-21T04:19:03"}, "has no time zone"),
        ({"launches": [LAUNCH | {"ended_utc": "soon"}]}, "launches.0.ended_utc: "),
        ({"launches": [LAUNCH | {"launch": 1}]}, "not numbered from 0"),
        ({"run_id": "../../victim"}, "run_id: String should match pattern"),
        ({"run_id": "\ud800"}, "is not a run record"),
        ({"cases": [CASE | {"memcpy": {"bytes": 0, "samples_ns": []}}]}, "cases.0.memcpy.bytes: "),
        *(({"cases": [CASE | {"memcpy": {"bytes": 1, "samples_ns": [n]}}]}, "samples_ns.0: ")
          for n in (-1, 2**63)),
        ({"cases": [CASE | {"totals": CASE["totals"] | {"requests": -7}}]}, "totals.requests: "),
        ({"cases": [CASE | {"cache": CASE["cache"] | {"sharing": "table"}}]},
         "cases.0.cache.sharing: "),
    ],
    ids=str,
)  # fmt: skip
def test_odd_values_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    assert re.search(reason, refusal(edited(tmp_path / "run.json", **changes)))


@given(st.integers(min_value=0, max_value=len(WHOLE) - 3))
def test_a_record_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(RecordError, match=r"cut short|not a run record"):
        store.loads(WHOLE[:length], "run.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[]", "is JSON but not a run record: it has no schema_version."), ("{", "not JSON")],
)
def test_a_file_that_is_no_record_is_listed(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "notes.json").write_text(text)
    (entry,) = store.list_entries(tmp_path)
    assert entry.summary is None
    assert reason in str(entry.problem)


MOMENT = datetime(2026, 11, 21, 4, 19, 3, tzinfo=UTC)


@given(st.text())
@example("default")
def test_any_configuration_name_gives_a_safe_file_name(name: str) -> None:
    assert re.fullmatch(
        r"20261121T041903Z-[A-Za-z0-9._-]{1,60}-[0-9a-f]{6}", store.new_run_id(name, MOMENT)
    )


DATA = Path(__file__).parent / "data"
FIRST = DATA / "record-v1-first.json"  # before launches, telemetry and the digest


def test_the_first_records_load_with_what_they_did_not_know_at_its_default() -> None:
    record = store.load_record(FIRST)
    assert "launches" not in json.loads(FIRST.read_text())
    assert record.launches == []
    assert {case.launch for case in record.cases} == {0}
    samples_ns = record.cases[0].operations[0].samples_ns
    assert samples_ns == [417_000, 421_500, 419_250, 430_000, 418_100, 425_000]


def test_what_telemetry_had_before_is_skipped() -> None:
    telemetry = make_telemetry()
    before = telemetry.model_dump() | {"memory_peak_bytes": 1, "gpu": {"uuid": "GPU-1"}}
    before["windows"][0] |= {"calls": 64, "warmup_ns": 1}
    before["gpu_samples"]["energy_mj"] = before["gpu_samples"]["power_mw"]
    before["gpu_checks"] |= {"ecc_corrected": [0], "dram_percent": [1.5]}
    before["host_samples"]["load_1min"] = [0.5]
    assert Telemetry.model_validate(before, strict=True) == telemetry
