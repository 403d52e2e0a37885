"""Profiles with odd values: each is told or refused with a sentence, and never a traceback."""

import gzip
import os
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dsv4kv import files
from dsv4kv.errors import ProfileError
from dsv4kv.profile import kineto
from dsv4kv.profile.read import load_profile
from dsv4kv.view.profile import profile_page
from tests.profile.traces import event, gpu_events, save
from tests.view.terminal import shown


def tell(path: Path, chance: random.Random) -> str:
    """What is told of a profile, empty where it is refused."""
    try:
        profile = load_profile(path, chance.choice(["step", "*", "none"])).profile
    except ProfileError:
        return ""
    return shown(*profile_page(profile, None).parts(verbose=True))


NUMBERS = ["1e400", "-1e400", "9" * 5_000, "1" + "0" * 300, "1e300", str(2**64 - 1), '"1"', '"x"']
CPP = ["NaN", "-Infinity", "inf", "-inf", "nan", "-nan"]  # as Kineto writes what it does not know
OTHERS = [
    "null",
    "true",
    "{}",
    "[1]",
    "[1, [2]]",
    "[1, 2, 3, 4]",
    "[" * 100_000 + "]" * 100_000,
    "[" * 100_000,
]
NAMES = ["_ZN" + "9" * 5_000, "a<" * 100_000, "void kentry<" + "1, " * 50_000, "k" * (1 << 20)]
PLACES = ["cat", "ph", "name", "pid", "tid", "ts", "dur", "args", "correlation", "grid", "stream"]


@cache
def with_one_odd(place: str) -> list[str]:
    """A trace with an event that has ``"ODD"`` there, the first or the last of all."""
    odd = event("kernel", "odd", 10, 1, device=0, stream=7, correlation=50, grid=[1, 1, 1])
    (odd["args"] if place in odd["args"] else odd)[place] = "ODD"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        return [
            save(path, events).read_text()
            for events in ([odd, *gpu_events()], [*gpu_events(), odd])
        ]


@pytest.mark.parametrize("value", [*NUMBERS, *CPP, *OTHERS], ids=lambda value: value[:12])
def test_odd_values_anywhere_in_a_trace_are_left_out_or_refused(
    value: str, tmp_path: Path
) -> None:
    """Written by hand: json.dumps writes no such thing."""
    chance = random.Random(0)
    for place in PLACES:
        for text in with_one_odd(place):
            path = tmp_path / "t.json"
            path.write_text(text.replace('"ODD"', value))
            told = tell(path, chance)
            assert len(value) > 1_000 or "gather_topk" in told, place


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:12])
def test_names_of_any_length_are_told(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / "t.json", [*gpu_events(), event("kernel", name, 10, 1, correlation=50)])
    assert "gather_topk" in tell(path, random.Random(0))


@pytest.mark.parametrize(
    "listed",
    ["[", "[1]", "[" * 100_000, '[{"id": ' + "9" * 5_000 + "}]", '[{"id": [1], "name": inf}]'],
)
def test_odd_devices_are_done_without(listed: str, tmp_path: Path) -> None:
    path = save(tmp_path / "t.json", gpu_events(), head={"deviceProperties": "ODD"})
    path.write_text(path.read_text().replace('"ODD"', listed))
    assert "gather_topk" in tell(path, random.Random(0))


@pytest.mark.parametrize(
    "name", ["t.json", "t.json.gz", "t.sqlite", "t.nsys-rep", "t.ncu-rep", "t"]
)
def test_a_pipe_is_refused_without_waiting_for_what_it_says(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ProfileError):
        load_profile(tmp_path / name, "step")


def test_a_trace_is_refused_before_most_of_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_SPARED_BYTES", 1 << 20)
    path, event = tmp_path / "t.json.gz", b'{"ph":"X","name":"k","cat":"kernel","ts":1,"dur":1},'
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + event * 400_000 + b"{}]}"))
    taken: list[object] = []
    with pytest.raises(ProfileError, match="unpacks to over 200 times its size"):
        taken.extend(kineto.ChromeFile(path))
    assert 0 < len(taken) < 200_000


@pytest.mark.parametrize("at", [2, 3, 40, 200, -6, -1])
def test_a_trace_that_was_damaged_after_it_was_packed_is_refused(at: int, tmp_path: Path) -> None:
    content = bytearray(gzip.compress(save(tmp_path / "good.json", gpu_events()).read_bytes()))
    content[at] ^= 0xFF
    (tmp_path / "odd.json").write_bytes(content)
    with pytest.raises(ProfileError, match=r"odd\.json"):
        load_profile(tmp_path / "odd.json", "step")
