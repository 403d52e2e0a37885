"""Profiles by the names of files and by what is in them."""

import gzip
import os
from pathlib import Path

import pytest

from dsv4kv.errors import ProfileError
from dsv4kv.profile.read import read_profile
from tests.profile.exports import two_replays
from tests.profile.traces import gpu_events, save


@pytest.fixture(autouse=True)
def _without_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("name", ["step.sqlite", "step.SQLITE3", "step.db", "step", "step.json"])
def test_a_database_may_have_any_name(name: str, tmp_path: Path) -> None:
    assert read_profile(two_replays().save(tmp_path / name)).tool == "nsys"


@pytest.mark.parametrize("name", ["t.json", "t.pt.trace.json.gz", "t.gz", "t.trace", "t"])
def test_a_trace_may_have_any_name(name: str, tmp_path: Path) -> None:
    assert read_profile(save(tmp_path / name, gpu_events())).tool == "kineto"


def test_a_packed_database_is_to_be_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "step.sqlite.gz"
    path.write_bytes(gzip.compress(two_replays().save(tmp_path / "step.sqlite").read_bytes()))
    with pytest.raises(ProfileError, match=r"step\.sqlite\.gz is a packed database: unpack it"):
        read_profile(path)


@pytest.mark.parametrize("content", [b"PAR1", b"ARROW1", b"\x89HDF\r\n", b"", b"\x1f\x8b"])
def test_other_exports_of_nsys_are_refused_with_what_to_do(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "step.bin"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="export with `nsys export --type=sqlite`"):
        read_profile(path)


def test_json_lines_of_nsys_are_no_chrome_trace(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    path.write_text('{"data":["python"]}\n{"Type":80,"CudaEvent":{"startNs":"1"}}\n')
    with pytest.raises(ProfileError, match="it is no Chrome trace"):
        read_profile(path)


def test_without_nsys_a_report_needs_an_export_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "server.nsys-rep"
    path.touch()
    with pytest.raises(ProfileError, match=r"--type=sqlite server\.nsys-rep`, and show server\.s"):
        read_profile(path)
    two_replays().save(tmp_path / "server.sqlite")
    assert read_profile(path).warnings == []


def test_an_export_older_than_its_report_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "server.nsys-rep"
    path.touch()
    os.utime(two_replays().save(tmp_path / "server.sqlite"), (1, 1))
    assert "server.sqlite is older than server.nsys-rep" in read_profile(path).warnings[0]
