"""A probe of an engine's own manager learns what was set, and the same as of our own cache."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dsv4kv.diagnose.questioner import Prompt, Refused
from tests.diagnose.probe.fakes import Cache, FakeServer, Setting, draw_setting, open_cache
from tests.diagnose.probe.test_probe import check, probe, values
from tests.engines.oracles.asking import HERE, engines_folder, needs_engines
from tests.examples import FULL

SETTINGS = 20 if FULL else 4


def trace(setting: Setting) -> dict[str, Any]:
    """A setting as a manager reads it."""
    about = {"speculation": setting.speculation, "chunk_tokens": setting.chunk_tokens}
    if setting.engine.startswith("vllm"):
        retention = {"groups": "v4", "retention": setting.retention}
        return about | retention | {"blocks": setting.pages, "page": setting.page_tokens}
    return about | {
        "pages": setting.pages,
        "window_pages": setting.window_pages or None,
        "page": setting.page_tokens,
        "free": setting.retention is not None,
        "replay": None,
    }


@contextmanager
def manager(engine: str, setting: Setting) -> Iterator[Cache]:
    """An engine's manager in its own environment."""
    folder = engines_folder()
    command = [*map(str, (folder / "bin/python", HERE / "served.py", engine, folder / engine))]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-3, text=True) as running:
        assert running.stdin
        assert running.stdout

        def tell(line: object) -> int:
            assert running.stdin
            assert running.stdout
            print(json.dumps(line), file=running.stdin, flush=True)
            answers = (each for each in running.stdout if each.startswith("["))
            (hit,) = json.loads(next(answers))
            return int(hit)

        def serve(prompt: Prompt) -> int:
            hit = tell(prompt)
            if hit < 0:
                raise Refused("longer than all blocks together")
            return hit

        tell(trace(setting))
        yield serve
        running.stdin.close()


@needs_engines
@pytest.mark.parametrize("seed", range(SETTINGS))
@pytest.mark.parametrize("engine", ["vllm-v4", "sglang", "sglang-v4"])
def test_settings_of_an_engines_own_manager_are_recovered(engine: str, seed: int) -> None:
    setting = draw_setting(engine, seed)
    with manager(engine.partition("-")[0], setting) as cache:
        found = probe(FakeServer(cache, noise=0.02, seed=seed))
    check(setting, found)
    ours = values(probe(FakeServer(open_cache(setting), noise=0.02, seed=seed)))
    theirs = values(found)
    assert {name: each.value for name, each in theirs.items()} == {
        name: each.value for name, each in ours.items()
    }
