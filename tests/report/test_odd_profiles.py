"""Profiles with odd values: each is told or refused with a sentence, and never a traceback."""

import random
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.errors import ProfileError
from dsv4kv.report.profile_source import load_profile
from dsv4kv.report.profile_view import tell_profile
from tests.measure.profilers.exports import two_replays
from tests.measure.profilers.traces import cpu_events, gpu_events, save
from tests.report.terminal import shown

ODD: list[Any] = [None, -1, 0, 1.5, 2**40, "", "x"]
ODD_JSON: list[Any] = [*ODD, 2**70, float("inf"), [1], {}]


def tell(path: Path, chance: random.Random) -> str:
    """What is told of a profile, empty where it is refused."""
    try:
        profile = load_profile(path, chance.choice(["step", "*", "none"])).profile
    except ProfileError:
        return ""
    return "\n".join(map(shown, tell_profile(profile, None, full=True)))


def spoil(values: dict[str, Any], odd: list[Any], often: float, chance: random.Random) -> None:
    for name in values:
        if chance.random() < often:
            values[name] = chance.choice(odd)


@pytest.mark.parametrize("seed", range(40))
def test_an_export_with_odd_values_is_told_or_refused(seed: int, tmp_path: Path) -> None:
    chance, export = random.Random(seed), two_replays()
    export.add("DIAGNOSTIC_EVENT", timestamp=0, severity=3, text="lost")
    export.add("TARGET_INFO_GPU", id=0, name="A GPU", cuDevice=0)
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=4321)
    for table, rows in export.rows.items():
        kept = [name for name in export.columns[table] if chance.random() > 0.08]
        export.columns[table] = kept or export.columns[table]
        for row in rows:
            spoil(row, [*ODD, b"\x00\xff"], 0.02, chance)
    tell(export.save(tmp_path / "step.sqlite"), chance)


@pytest.mark.parametrize("seed", range(40))
def test_a_trace_with_odd_values_is_told_or_refused(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    events = chance.choice([gpu_events, cpu_events])()
    for one in events:
        spoil(one["args"], ODD_JSON, 0.1, chance)
        spoil(one, ODD_JSON, 0.005, chance)
    tell(save(tmp_path / "t.json", events), chance)


def test_what_is_not_odd_is_told(tmp_path: Path) -> None:
    """So that the tests above tell anything at all."""
    for path in (
        two_replays().save(tmp_path / "step.sqlite"),
        save(tmp_path / "t.json", gpu_events()),
    ):
        assert "gather_topk" in tell(path, random.Random(0))
