"""A recording is watched while it grows: each record once, and the last minutes of all."""

import sys
from io import StringIO
from itertools import repeat
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.record.folder import Record, Recording
from dsv4kv.record.server import Follower, Glance, Live, Watched
from dsv4kv.view.recorded import dashboard
from dsv4kv.view.render import show
from tests.record.frames import frames, recorded, stored
from tests.record.frames import removed as removed_blocks
from tests.replay.test_against import BEGUN_S, BLOCKS, Scene, record


def watched(folder: Path, window_s: float = 600.0, *, now_s: float = BEGUN_S) -> Watched:
    found = Watched(window_s, lambda: now_s)
    for stream, each in Follower(folder).read():
        found.take(stream, each)
    return found


def numbers(follower: Follower) -> list[int]:
    return [each["n"] for stream, each in follower.read() if stream == "requests"]


def test_every_record_is_read_once_also_over_files_and_half_lines(tmp_path: Path) -> None:
    with Recording(tmp_path / "server", rotate_bytes=200) as recording:
        follower = Follower(tmp_path / "server")
        for n in range(3):
            recording.write("requests", {"n": n})
        recording.sync()
        assert numbers(follower) == [0, 1, 2]
        for n in range(3, 20):
            recording.write("requests", {"n": n})
        recording.sync()
        last = sorted((tmp_path / "server").glob("requests.*"))[-1]
        with last.open("a") as torn:
            torn.write('{"n":')
        assert numbers(follower) == list(range(3, 20))
        with last.open("a") as whole:
            whole.write('20,"at":1.0}\nno record\n')
        assert numbers(follower) == [20]
        assert numbers(follower) == []
        assert follower.damaged == 1
        done = CliRunner().invoke(app, ["watch", str(tmp_path / "server"), "--seconds", "0"])
        assert "1 damaged row skipped" in done.stdout


def test_the_largest_groups_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = {"size": 16, "chain": False, "parent": None}
    with Recording(tmp_path / "server", clock=lambda: BEGUN_S) as recording:
        events = [{"stored": list(range(g + 1)), "group": g, **of} for g in range(100)]
        recording.write("events", {"source": "events:0", "ts": BEGUN_S, "events": events})
        for ids in ([1] * 1000, [2] * 1000):
            recording.write("requests", {"source": "proxy:0", "grain": 64, "ids": ids})
    found = watched(tmp_path / "server")
    show(dashboard(found.glance()))
    groups = [line.split()[0] for line in capsys.readouterr().out.splitlines()[-20:]]
    assert groups == [str(number) for number in range(80, 100)]
    assert [len(row["ids"]) for row in found._rows] == [1, 1]
    assert found.glance().requests == 2


@pytest.mark.parametrize("family", BLOCKS)
def test_hits_are_those_told_in_the_last_minutes(family: str, tmp_path: Path) -> None:
    scene = Scene(family)
    folder = record(tmp_path / "server", scene)
    whole, late = watched(folder).glance(), watched(folder, 60.0).glance()
    asked = sum(request.input_tokens for request in scene.requests)
    assert whole.found["its answers"] == (sum(scene.hits), asked)
    rows = list(zip(scene.requests, scene.hits, strict=True))
    end_s = watched(folder)._now_s - BEGUN_S
    expected = [(r.input_tokens, hit) for r, hit in rows if r.arrival_s >= end_s - 60.0]
    assert late.found["its answers"] == (sum(h for _, h in expected), sum(t for t, _ in expected))
    assert late.requests == len(expected) < whole.requests
    assert late.window_s == 60.0


def test_tokens_found_are_told_apart_by_where_they_were(tmp_path: Path) -> None:
    with Recording(tmp_path / "server") as recording:
        for times in (1, 4):
            values = {
                "vllm:prompt_tokens_cached_by_source_total{engine=0,source=device}": 30.0 * times,
                "vllm:prompt_tokens_cached_by_source_total{engine=0,source=host}": 10.0 * times,
                "sglang:cached_tokens_total{odd}": 5.0 * times,
                "vllm:prefix_cache_hits_total": 30.0 * times,
                "vllm:prefix_cache_queries_total": 100.0 * times,
                "vllm:num_preemptions_total": float(times),
                "vllm:num_requests_running": 7.0,
                "vllm:kv_cache_usage_perc": 0.25,
            }
            recording.write("metrics", {"source": "metrics:0", "values": values})
    glance = watched(tmp_path / "server").glance()
    assert glance.found == {"its counters": (90, 300)}
    assert glance.sources == {"device": 90, "host": 30}
    assert (glance.preempted, glance.running, glance.used) == (3, 7, 0.25)


def test_where_no_counter_says_where_tokens_were_the_answers_do(tmp_path: Path) -> None:
    rows = ({"device": 64, "host": 0}, {"device": 128, "host": 256}, None)
    with Recording(tmp_path / "server") as recording:
        for number, found in enumerate(rows):
            row: Record = {"source": "requests:0", "id": number, "input_tokens": 500}
            row |= {"cached_tokens": sum(found.values()), "cached_by": found} if found else {}
            recording.write("requests", row)
    glance = watched(tmp_path / "server").glance()
    assert glance.sources == {"device": 192, "host": 256}
    assert glance.found == {"its answers": (448, 1000)}


def test_blocks_by_group_are_stored_less_evicted_and_said_to_be_inferred(tmp_path: Path) -> None:
    tokens = list(range(512))
    recorded(
        tmp_path / "server",
        [
            frames(0, stored([1, 2], None, tokens, 256, group_idx=0)),
            frames(1, stored([3, 4, 5], None, tokens, 64, group_idx=1)),
            frames(2, removed_blocks(4, group_idx=1)),
        ],
    )
    glance = watched(tmp_path / "server").glance()
    assert glance.groups == {0: 2, 1: 2}
    assert (glance.stored, glance.removed) == (5, 1)
    assert "Cached blocks (inferred)" in drawn(glance)


def drawn(glance: Glance) -> str:
    file = StringIO()
    show(dashboard(glance), Console(width=110, file=file))
    return file.getvalue()


def test_a_recording_outlasts_no_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Recording(tmp_path / "server").__exit__()
    endless = repeat(("requests", {"source": "proxy:0", "at": 1.0}))
    monkeypatch.setattr(Follower, "read", lambda _: endless)
    done = run("watch", tmp_path / "server", "--seconds", 0.2)
    assert done.exit_code == 0
    assert "server: not read to its end in 0.2 s." in done.output


def test_a_status_line_may_be_made_while_a_source_counts() -> None:
    live, before_s = Live(), sys.getswitchinterval()

    def count() -> None:
        for n in range(3_000):
            live.hear("metrics", {"source": f"metrics:{n}", "values": {f"vllm:{n}": 1.0}})

    source = Thread(target=count)
    sys.setswitchinterval(1e-6)
    try:
        source.start()
        while source.is_alive():
            live.line()
    finally:
        sys.setswitchinterval(before_s)
        source.join()


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])
