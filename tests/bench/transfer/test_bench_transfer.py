"""``bench transfer``: a prompt moves between two caches, is verified, timed, and told."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import dsv4kv.bench.transfer.prefill as sides
from dsv4kv.bench.transfer.manifest import Manifest, MappedReader, Memory, make_manifest
from dsv4kv.bench.transfer.prefill import Prefill, Side, cache_of
from dsv4kv.bench.transfer.receiver import Peer, receive_layers
from dsv4kv.bench.transfer.run import LISTENING, TOKEN, Outcome, parse_address, run_transfer
from dsv4kv.cli import app
from dsv4kv.config.experiments import TransferConfig
from dsv4kv.config.load import load_config
from dsv4kv.errors import ConfigError, StoreUnavailable

SMALL = ["layers=[0,2,3]", "tokens=259", "timed_tokens=1024", "chunk_tokens=256", "rounds=6"]
SMALL += ["decode_steps=2", "timeout_s=20"]
SHM = Path("/dev/shm")


def config(*overrides: str) -> TransferConfig:
    return load_config(None, [*SMALL, *overrides], TransferConfig).config


def transfer(*arguments: str, columns: int = 80) -> Result:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(app, ["bench", "transfer", *sets, *arguments])


@pytest.fixture
def prefill(request: pytest.FixtureRequest) -> Iterator[Prefill]:
    asked = config("transport=tcp", *getattr(request, "param", ()))
    made = Prefill(asked, ("127.0.0.1", 0), "")
    with made:
        yield made


def moved(prefill: Prefill, *overrides: str) -> Outcome:
    asked = config("transport=tcp", *overrides)
    return run_transfer(asked, prefill.address, "", lambda *_: None)


@pytest.mark.parametrize(
    "prefill", [(), ("prefill.draft_tokens=3", "draft_layers=true")], indirect=True
)
def test_a_prompt_is_moved_at_its_end_and_layer_by_layer_and_decoded_on(prefill: Prefill) -> None:
    """Into other pages and rings, over several connections, and to a second rank."""
    drafts = prefill._config.draft_layers
    asked = ["decode.block_tokens=512", "connections=2", "ranks=2", f"draft_layers={drafts}"]
    (run,) = moved(prefill, *asked).runs
    assert run.failures == []
    assert run.copies == 1
    assert set(run.families) == {
        *("csa", "csa_indexer", "hca", "window", "csa_state", "csa_indexer_state", "hca_state")
    }
    assert run.families["csa"].useful_bytes == 1024 // 4 * 584
    assert run.families["hca_state"].bytes == 0  # no group is open after 1,024 tokens
    assert all(each.descriptors <= each.pieces for each in run.families.values())
    assert run.total.bytes == sum(each.bytes for each in run.families.values())
    assert prefill._slots == {}


def test_a_transport_that_is_not_here_is_left_out_or_refused(prefill: Prefill) -> None:
    """The prefill side has no shared memory here: sockets are left."""
    everything = run_transfer(config(), prefill.address, "", lambda *_: None)
    assert [run.transport for run in everything.runs] == ["tcp"]
    assert [skipped.split(":")[0] for skipped in everything.skipped] == ["shm"]
    with pytest.raises(StoreUnavailable, match="set transport=tcp"):
        run_transfer(config("transport=shm"), prefill.address, "", lambda *_: None)


@pytest.mark.parametrize("prefill", [("prefill.formats.main=bf16",)], indirect=True)
def test_other_formats_are_refused(prefill: Prefill) -> None:
    with pytest.raises(ConfigError, match=r"csa: format: bf16 there and fp8_ds_mla here"):
        moved(prefill)


@pytest.mark.parametrize("prefill", [("tokens=300",)], indirect=True)
def test_pages_that_have_moved_under_their_numbers_fail_the_run(
    prefill: Prefill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Virtual numbers: digests are of the wrong pages, too; decoding on is not."""

    def virtual(memory: Memory, slot: int, tokens: int, **how: Any) -> Manifest:
        row = memory.manager.tables[0].blocks[0, slot]
        truth = row.copy()
        if truth[1] >= 0:
            row[:2] = truth[:2][::-1]
        try:
            return make_manifest(memory, slot, tokens, **how)
        finally:
            row[:] = truth

    monkeypatch.setattr(sides, "make_manifest", virtual)
    host, port = prefill.address
    sets = "--set", "transport=tcp", "--set", "tokens=300"
    result = transfer("--connect", f"{host}:{port}", *sets)
    assert result.exit_code == 6
    assert "tcp, at its end: 2 decode steps do not read what" in result.stderr
    assert "of 2 transfers differ" in result.stdout


def test_layers_come_while_later_ones_are_computed(prefill: Prefill) -> None:
    """A layer is read as soon as the sender has it, in every chunk, and no sooner."""
    events: list[tuple[str, int, int]] = []
    peer = Peer(prefill.address)
    wait = peer.wait

    def heard(request: int, layer: int, tokens: int) -> None:
        wait(request, layer, tokens)
        events.append(("ready", layer, tokens))

    peer.wait = heard  # type: ignore[method-assign]
    side = Side(cache_of(config(), config().decode, 1))
    with peer:
        request = peer.ask({"op": "compute"})["request"]
        received = receive_layers(side.memory, peer, request, peer)
    assert received.tokens == 259
    expected = [(layer, tokens) for tokens in (256, 259) for layer in (0, 2, 3)]
    assert [event[1:] for event in events] == expected


@pytest.mark.parametrize("waits", [True, False])
def test_a_decode_side_that_goes_away_leaves_its_request_to_nobody(
    prefill: Prefill, waits: bool
) -> None:
    """While the prompt is computed, or after: its blocks are free for whoever comes next."""
    with Peer(prefill.address) as peer:
        request = peer.ask({"op": "compute"})["request"]
        if waits:
            peer.manifest(request)
    end = monotonic() + 60
    while prefill._slots and monotonic() < end:
        sleep(0.01)
    manager = prefill._side.memory.manager
    assert (manager.num_free_slots, manager.num_held_blocks) == (2, 0)
    assert moved(prefill).runs[0].failures == []


def chunks(*manifests: Manifest) -> Any:
    """A sender that says these, one after the other."""
    left = iter(manifests)
    return SimpleNamespace(manifest=lambda *_: next(left), wait=lambda *_: None)


def test_chunks_that_do_not_follow_on_each_other_are_refused(prefill: Prefill) -> None:
    """One that gains nothing would be asked for for ever; one that is left out would be missed."""
    source = prefill._side
    slot = source.prefill(0, 256)
    first, half = (make_manifest(source.memory, slot, n, complete=False) for n in (256, 128))
    whole, end = make_manifest(source.memory, slot, 256), {"prefix": 256}
    target = Side(cache_of(config(), config().decode, 1)).memory
    reader = MappedReader(source.memory.regions)
    for said in (
        (first, first),
        (first.model_copy(update=end),),
        (half, whole),
        (first, whole.model_copy(update=end)),
    ):
        with pytest.raises(StoreUnavailable, match="do not follow on each other"):
            receive_layers(target, chunks(*said), 0, reader)
        assert (target.manager.num_free_slots, target.manager.num_held_blocks) == (1, 0)
    assert receive_layers(target, chunks(first, whole), 0, reader).tokens == 256


def test_what_is_not_asked_here_is_refused(prefill: Prefill) -> None:
    for message in (
        {"op": "format the disk"},
        {"op": "decode", "request": 7},
        {"op": "release", "request": "0"},
        {"op": "manifest", "request": -1},
        {"op": "chunk", "request": 0, "prefix": 0},
    ):
        with Peer(prefill.address) as peer, pytest.raises(StoreUnavailable, match="says"):
            peer.ask(message)
    with Peer(prefill.address) as peer:
        peer.ask({"op": "compute"})
        with pytest.raises(StoreUnavailable, match="release it first"):
            peer.ask({"op": "compute"})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--listen", "0.0.0.0:0"), "DSV4KV_TRANSFER_TOKEN"),
        (("--listen", "7100"), "write HOST:PORT"),
        (("--listen", "127.0.0.1:1", "--connect", "127.0.0.1:1"), "one machine listens"),
        (("--connect", "127.0.0.1:1", "--axis", "merge=true,false"), "on this machine"),
        (("--axis", "merge=true,true"), "comes twice"),
        (("--connect", "10.1.2.3:7100"), "DSV4KV_TRANSFER_TOKEN"),
        (("--connect", "127.0.0.1:99999"), "write HOST:PORT"),
        (("--set", "tokens=0"), "tokens"),
        (("--set", "transport=pigeon"), "transport"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(
    arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    result = transfer(*arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())


def test_who_may_not_listen_leaves_nothing_in_shared_memory() -> None:
    command = [sys.executable, "-m", "dsv4kv", "bench", "transfer", "--listen", "0.0.0.0:0"]
    env = {name: value for name, value in os.environ.items() if name != TOKEN}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr


def test_two_processes_by_shared_memory_and_by_a_socket() -> None:
    """The whole command: 80 columns, both transports, nothing left in shared memory."""
    before = set(SHM.glob("psm_*"))
    result = transfer("--json", "-")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert [run["transport"] for run in document["runs"]][:2] == ["shm", "tcp"]
    assert all(run["failures"] == [] for run in document["runs"])
    shm, tcp = (run["families"] for run in document["runs"][:2])
    assert {n: f["bytes"] for n, f in shm.items()} == {n: f["bytes"] for n, f in tcp.items()}
    left = [path for path in SHM.glob("psm_*") if path not in before]
    end = monotonic() + 60
    while any(path.exists() for path in left):  # those of other tests go, too
        assert monotonic() < end
        sleep(0.05)


def test_a_prefill_side_that_is_killed_leaves_the_decode_side_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kill -9 while it computes: a sentence at once, and every block is free again."""
    sets = [word for setting in [*SMALL, "tokens=60000"] for word in ("--set", setting)]
    command = [sys.executable, "-m", "dsv4kv", "bench", "transfer", "--listen", "127.0.0.1:0"]
    other = subprocess.Popen(
        [*command, "--set", "transport=tcp", *sets],
        stdout=subprocess.PIPE,
        env=os.environ | {TOKEN: "t" * 20},
    )
    try:
        assert other.stdout is not None
        line = other.stdout.readline().decode()
        address = parse_address(line.removeprefix(LISTENING).split()[0])
        side = Side(cache_of(config("tokens=60000"), config().decode, 1))
        with Peer(address, token="t" * 20) as peer:
            request = peer.ask({"op": "compute"})["request"]
            peer.wait(request, 3, 256)
            threading.Timer(0.1, other.send_signal, [signal.SIGKILL]).start()
            with pytest.raises(StoreUnavailable, match=r"hung up|broke"):
                receive_layers(side.memory, peer, request, peer)
    finally:
        other.kill()
        other.communicate()
    manager = side.memory.manager
    assert (manager.num_free_slots, manager.num_held_blocks) == (1, 0)
