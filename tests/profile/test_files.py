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


@pytest.mark.parametrize("name", ["step.SQLITE3", "step", "t.json", "t.pt.trace.json.gz"])
def test_a_profile_may_have_any_name(name: str, tmp_path: Path) -> None:
    if "gz" not in name:
        assert read_profile(two_replays().save(tmp_path / name)).tool == "nsys"
    if "SQL" not in name:
        assert read_profile(save(tmp_path / name, gpu_events())).tool == "kineto"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (gzip.compress(b"SQLite format 3\0" + bytes(99)), "is a packed database: unpack it"),
        (b'{"data":["python"]}\n{"Type":80,"CudaEvent":{"startNs":"1"}}\n', "no Chrome trace"),
        *((other, "export with `nsys export --type=sqlite`") for other in (b"PAR1", b"\x1f\x8b")),
    ],
)
def test_other_files_are_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "step").write_bytes(content)
    with pytest.raises(ProfileError, match=sentence):
        read_profile(tmp_path / "step")


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
