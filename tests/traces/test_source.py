"""A trace is a file, or one that the toolkit ships; anything else is told what there is."""

import os
from pathlib import Path

import pytest

from dsv4kv.errors import TraceError
from dsv4kv.traces import resolve_trace, trace_sha256


def test_the_digest_of_a_folder_follows_its_names_and_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("one")
    digests = [trace_sha256(tmp_path)]
    (tmp_path / "a.json").write_text("two")
    digests.append(trace_sha256(tmp_path))
    (tmp_path / "a.json").rename(tmp_path / "b.json")
    digests.append(trace_sha256(tmp_path))
    (tmp_path / "notes.txt").write_text("no part of the trace")
    assert len(set(digests)) == 3
    assert trace_sha256(tmp_path) == digests[2]
    (tmp_path / "b.json").rename(tmp_path / os.fsdecode(b"\xff.json"))
    assert trace_sha256(tmp_path) not in digests


@pytest.mark.parametrize("name", ["a" * 1000, "a\0b", "missing/folder/trace.jsonl"])
def test_a_name_no_file_can_have_is_refused_as_a_sentence(name: str) -> None:
    with pytest.raises(TraceError):
        resolve_trace(name)


def test_what_has_no_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hashlib.file_digest", None)
    with (tmp_path / "sparse.jsonl").open("wb") as file:
        file.truncate(2**34)
    with pytest.raises(TraceError, match="the line is longer than 64 MiB"):
        trace_sha256(tmp_path / "sparse.jsonl")
