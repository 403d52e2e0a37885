"""``bench transfer``: a prompt moves between two caches, is verified, and timed."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.bench.transfer import (
    Outcome,
    Prefill,
    Side,
    cache_of,
    decode,
    prefill_process,
    serve,
    shared_file,
)
from dsv4kv.cli import app
from dsv4kv.config.experiments import TransferConfig
from dsv4kv.config.load import load_config
from dsv4kv.errors import ConfigError, StoreUnavailable

SMALL = ["model.layers=[0,2,3]", "tokens=259", "timed_tokens=1024", "chunk_tokens=256", "rounds=6"]
SMALL += ["decode_steps=2", "timeout_s=60"]


def config(*overrides: str) -> TransferConfig:
    return load_config(None, [*SMALL, *overrides], TransferConfig).config


def transfer(*arguments: str) -> Result:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    environment = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(app, ["bench", "transfer", *sets, *arguments])


@contextmanager
def prefill_thread(asked: TransferConfig) -> Iterator[Prefill]:
    """The prefill side in a thread, where tests can change it."""
    ours, theirs = Pipe()
    with shared_file() as file, theirs:
        thread = threading.Thread(target=serve, args=(theirs, file.fileno()))
        thread.start()
        try:
            with ours:
                yield Prefill(asked, ours, file)
        finally:
            thread.join()


def moved(*overrides: str) -> Outcome:
    asked = config(*overrides)
    with prefill_thread(asked) as prefill:
        side = Side(cache_of(asked, asked.decode, 1))
        return decode(asked, side, prefill, lambda *_: None)


@pytest.mark.parametrize("drafts", [(), ("prefill.draft_tokens=3", "model.draft_layers=true")])
def test_a_prompt_is_moved_and_decoded_on(drafts: tuple[str, ...]) -> None:
    """Into other pages and rings."""
    outcome = moved(*drafts, "decode.block_tokens=512")
    assert outcome.failures == []
    assert set(outcome.families) == {
        *("csa", "csa_indexer", "hca", "window", "csa_state", "csa_indexer_state", "hca_state")
    }
    assert outcome.families["csa"].useful_bytes == 1024 // 4 * 584
    assert outcome.families["hca_state"].bytes == 0  # no group is open after 1,024 tokens
    assert all(each.descriptors <= each.pieces for each in outcome.families.values())
    assert outcome.total.bytes == sum(each.bytes for each in outcome.families.values())


def test_what_the_prefill_side_refuses_is_raised_here() -> None:
    with pytest.raises(ConfigError, match=r"layers \[99\] are not among"):
        moved("model.layers=[0,99]")


def test_two_processes_by_shared_memory() -> None:
    result = transfer("--json", "-")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["failures"] == []
    assert document["pages"] > 0


def test_a_difference_ends_the_command_with_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, ours = Side.go_on, threading.current_thread()

    @contextmanager
    def beside(asked: TransferConfig) -> Iterator[tuple[Prefill, None]]:
        with prefill_thread(asked) as prefill:
            yield prefill, None

    def differ(side: Side, *given: Any) -> str:
        return "other" if threading.current_thread() is ours else go_on(side, *given)

    monkeypatch.setattr("dsv4kv.bench.transfer.prefill_process", beside)
    monkeypatch.setattr(Side, "go_on", differ)
    result = transfer()
    assert result.exit_code == 6
    assert "error: 2 decode steps do not read what" in " ".join(result.stderr.split())
    assert "the request differs after 2 decode steps" in result.stdout


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prefill_side_that_dies_or_stops_is_a_sentence_in_time(stop: signal.Signals) -> None:
    with prefill_process(config()) as (prefill, child):
        prefill._timeout_s = 1
        child.signal(stop)
        with pytest.raises(StoreUnavailable, match=r"ended in the middle|within timeout_s, 1 s: "):
            prefill.ask("compute")
