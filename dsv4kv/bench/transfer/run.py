"""The decode side of ``bench transfer``: receives requests, times reads, and decodes on."""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from select import select
from signal import SIGTERM
from subprocess import TimeoutExpired
from time import perf_counter_ns
from typing import Any

import numpy as np

from dsv4kv import __version__
from dsv4kv.bench.build import plan_from
from dsv4kv.bench.protocol import timed_ns
from dsv4kv.bench.transfer.frames import is_loopback
from dsv4kv.bench.transfer.manifest import Manifest, MappedReader, Memory, NotHere, attach
from dsv4kv.bench.transfer.prefill import Side, cache_of
from dsv4kv.bench.transfer.receiver import (
    Moved,
    Peer,
    Read,
    Reader,
    Received,
    fan_out,
    plan_request,
    receive,
    receive_layers,
    timed,
)
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.experiments import TRANSPORTS, TransferConfig
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.host import Sent
from dsv4kv.engines.names import ENGINES, TRANSFERS, find_engine
from dsv4kv.errors import ConfigError, StoreUnavailable, VerificationError
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats
from dsv4kv.processes import Child, python, with_package
from dsv4kv.runs.statistics import Estimate, divide, summarize

TOKEN = "DSV4KV_TRANSFER_TOKEN"
"""Environment variable with the secret that both sides know."""
LISTENING = "listening at "
_STARTED_S = 120.0
_DESCRIPTORS, _SMALL, _LARGE = 512, 1_728, 37_440  # pages of HCA and CSA entries in engines


@dataclass(frozen=True)
class Costs:
    """t = setup + descriptors x each + bytes / rate, from reads of two sizes of pages."""

    setup_ns: Estimate  # of a read, whatever it reads
    descriptor_ns: Estimate  # of every stretch
    byte_ns: Estimate  # of every byte


@dataclass(frozen=True)
class Run:
    """One transport; GB/s are medians of all rounds."""

    transport: str
    families: Mapping[str, Moved]  # what was read of every family
    gbps: Estimate | None  # of all families
    unmerged_gbps: Estimate | None  # of all families, a descriptor for every page
    memcpy_gbps: Estimate | None  # of one copy of as many bytes
    socket_gbps: Estimate | None  # of as many bytes over a bare socket; None where there is none
    costs: Costs  # of a read
    at_end_ns: int  # from asking for a prompt until it has come, read after its end
    by_layer_ns: int  # the same, read layer by layer while it is computed
    copies: int  # further ranks that copied it on this machine
    pages: int  # digests that were compared of the timed request
    failures: list[str] = field(default_factory=list)  # what is wrong, in sentences

    @property
    def total(self) -> Moved:
        """Of all families."""
        return replace(sum(self.families.values(), Moved()), gbps=self.gbps)

    @property
    def limit(self) -> Estimate | None:
        """What the bytes could be moved at: a bare socket's rate, or a copy's."""
        return self.socket_gbps or self.memcpy_gbps


@dataclass(frozen=True)
class Outcome:
    """All of it."""

    runs: list[Run]  # every transport's
    engines: Mapping[str, Sent | None]
    """What an engine would send for this request; None where that is not known."""
    skipped: list[str]  # why a transport was left out, in sentences


def run_transfer(
    config: TransferConfig,
    address: tuple[str, int],
    token: str,
    on_run: Callable[[str, int, int], None],
) -> Outcome:
    """Move a request from the prefill side at ``address`` by every transport.

    ``on_run`` is called with the next one and the number done. Raises ``ConfigError`` where caches
    differ or a token is missing, ``StoreUnavailable`` where the prefill side is not there.
    """
    names = list(TRANSPORTS) if config.transport == "all" else [config.transport]
    skipped: list[str] = []
    if config.transport == "all" and not is_loopback(address[0]):
        names.remove("shm")
        skipped.append("shm: the prefill side is on another machine.")
    side, runs = Side(cache_of(config, config.decode, 1)), list[Run]()
    for name in names:
        on_run(name, len(runs), len(names))
        try:
            with ExitStack() as stack:
                peers = [
                    stack.enter_context(Peer(address, token=token, timeout_s=config.timeout_s))
                    for _ in range(1 + (config.connections if name == "tcp" else 1))
                ]
                runs.append(Decode(config, side, name, peers).run())
        except NotHere as error:
            if config.transport != "all":
                raise
            skipped.append(f"{name}: {error}")
    return Outcome(runs, engines_beside(config), skipped)


class Decode:
    """A decode side that reads by one transport: the first peer asks, the others read."""

    def __init__(
        self, config: TransferConfig, side: Side, transport: str, peers: Sequence[Peer]
    ) -> None:
        self._config, self._side, self._transport = config, side, transport
        self._peer, *self._peers = peers
        self._mapped: MappedReader | None = None

    def run(self) -> Run:
        """Move a prompt at its end and one layer by layer; then time reads of a long request."""
        peer, memory, config = self._peer, self._side.memory, self._config
        plan = plan_from(cache_of(config, config.decode, 1))
        ranks = [Memory(KVCacheManager(plan)) for _ in range(config.ranks - 1)]

        def at_end(request: int) -> Received:
            manifest = peer.manifest(request)
            received = receive(memory, manifest, self._readers(manifest), merge=config.merge)
            fan_out(memory, received, ranks)
            return received

        def by_layer(request: int) -> Received:
            reader = self._mapped or self._peers[0]
            return receive_layers(memory, peer, request, reader, merge=config.merge)

        at_end_ns, failures = self._move("at its end", at_end)
        by_layer_ns, more = self._move("layer by layer", by_layer)
        request = int(peer.ask({"op": "hold"})["request"])
        manifest = peer.manifest(request)
        readers = self._readers(manifest)
        received = receive(memory, manifest, readers, merge=config.merge)
        rates, costs = self._measure(manifest, received, readers[0])
        self._leave(request, received)
        return Run(
            self._transport,
            {n: replace(moved, gbps=rates[n]) for n, moved in received.moved.items()},
            *(rates["all"], rates["unmerged"], rates["memcpy"], rates.get("socket")),
            costs,
            at_end_ns,
            by_layer_ns,
            copies=len(ranks),
            pages=sum(len(each.digests) for each in manifest.families.values()),
            failures=failures + more,
        )

    def _move(self, how: str, take: Callable[[int], Received]) -> tuple[int, list[str]]:
        """Let a prompt be computed, take it in and go on: how long it took, and what is wrong.

        Both sides decode, and what they read must be equal. The request is forgotten by both.
        """
        start, steps = perf_counter_ns(), self._config.decode_steps
        request = int(self._peer.ask({"op": "compute"})["request"])
        try:
            received = take(request)
        except VerificationError as error:
            self._peer.ask({"op": "release", "request": request})
            return perf_counter_ns() - start, [f"{self._transport}, {how}: {error}"]
        taken_ns = perf_counter_ns() - start
        stayed = self._peer.ask({"op": "decode", "request": request})["digest"]
        came = self._side.decode(received.slot, 0, steps)
        self._leave(request, received)
        unlike = f"{steps} decode steps do not read what a request reads that never left."
        return taken_ns, [f"{self._transport}, {how}: {unlike}"] * (came != stayed)

    def _leave(self, request: int, received: Received) -> None:
        self._peer.ask({"op": "release", "request": request})
        self._side.release(received.slot)

    def _readers(self, manifest: Manifest) -> Sequence[Reader]:
        """Of the sender's memory: sockets, or its segment, which the first request names."""
        if self._transport == "tcp":
            return self._peers
        if self._mapped is None:
            self._mapped = attach(manifest)
            self._peer.ask({"op": "mapped"})
        return [self._mapped]

    def _measure(
        self, manifest: Manifest, received: Received, reader: Reader
    ) -> tuple[dict[str, Estimate | None], Costs]:
        """Read everything again and again, each time next to a copy and a bare socket.

        Rates by family, of ``all``, and of all ``unmerged``; of ``memcpy`` and ``socket``.
        """
        memory, merge = self._side.memory, self._config.merge
        reads, single = (
            {n: plan_request(memory, manifest, received, n, merge=m) for n in memory.families}
            for m in (merge, False)
        )
        pages = max(single.values(), key=lambda read: read.moved.bytes)
        sizes = {name: read.moved.bytes for name, read in reads.items()}
        size = sum(sizes.values())
        left, right = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
        rounds, fitted = list[dict[str, int]](), list[tuple[float, float, float]]()
        for _ in range(self._config.rounds + 1):
            spent = {name: timed(reader, read).read_ns for name, read in reads.items()}
            spent["all"] = sum(spent.values())
            spent["unmerged"] = sum(timed(reader, read).read_ns for read in single.values())
            spent["memcpy"] = timed_ns(lambda: np.copyto(right, left))
            if self._transport == "tcp":
                spent["socket"] = timed_ns(partial(self._peers[0].read_raw, right.data))
            rounds.append(spent)
            fitted.append(_fit(reader, pages))
        rates: dict[str, Estimate | None] = {}
        for name in rounds[0]:  # by the median: other processes make some rounds long
            times = summarize([spent[name] for spent in rounds[1:]])  # the first warms up
            rates[name] = divide(Estimate(sizes.get(name, size), 0.0), times.estimate)
        costs = (summarize(values).estimate for values in zip(*fitted[1:], strict=True))
        return rates, Costs(*costs)


def _fit(reader: Reader, read: Read) -> tuple[float, float, float]:
    """Setup, ns of a descriptor and ns of a byte, from pages of two sizes.

    Of one small piece of a page, many small ones and as many large ones.
    """
    order = np.argsort(-read.places[:, 2], kind="stable")[:_DESCRIPTORS]
    places, into = read.places[order], [read.into[i] for i in order.tolist()]
    large, count = min(_LARGE, int(places[:, 2].min())), len(places)
    small = min(_SMALL, large // 2)

    def time_ns(count: int, size: int) -> int:
        columns = places[:count, 0], places[:count, 1], np.full(count, size)
        views = [view[:size] for view in into[:count]]
        return timed_ns(partial(reader.read, np.stack(columns, axis=1), views))

    one, many, larger = time_ns(1, small), time_ns(count, small), time_ns(count, large)
    byte_ns = (larger - many) / (count * (large - small))
    descriptor_ns = (many - one) / max(count - 1, 1) - small * byte_ns
    return one - descriptor_ns - small * byte_ns, descriptor_ns, byte_ns


def engines_beside(config: TransferConfig) -> dict[str, Sent | None]:
    """What engines would send for this request, of the layers that are held."""
    model = load_model(config.model)
    formats = config.prefill.formats
    found: dict[str, Sent | None] = {}
    for name in TRANSFERS:
        if name not in ENGINES:
            continue
        deployment = Deployment(
            model=model,
            formats=choose_formats(model, formats.main, formats.window, formats.indexer),
            max_context_tokens=config.timed_tokens,
            in_flight_tokens=config.chunk_tokens,
            layers=config.layers,
        )
        try:
            found[name] = find_engine(name).sent(deployment, config.timed_tokens)
        except ConfigError:
            found[name] = None
    return found


@contextmanager
def prefill_process(arguments: Sequence[str]) -> Iterator[tuple[tuple[str, int], str]]:
    """A prefill side in a process of its own, on this machine: its address and token.

    Raises ``StoreUnavailable`` where it does not start.
    """
    token = secrets.token_urlsafe(24)
    reading, writing = os.pipe()
    child = Child(
        python("-m", "dsv4kv", "bench", "transfer", *arguments, "--listen", "127.0.0.1:0"),
        stdout=writing,
        stderr=writing,
        env=with_package(os.environ) | {TOKEN: token},
    )
    os.close(writing)
    try:
        yield _listening(reading), token
    finally:
        os.close(reading)
        child.signal(SIGTERM)  # SIGINT is ignored by what a shell began in the background
        try:
            child.wait(5)
        except TimeoutExpired:
            child.kill()


def _listening(pipe: int) -> tuple[str, int]:
    """The address that the other process prints when it listens."""
    said = b""
    while b"\n" not in said[said.find(LISTENING.encode()) :] or LISTENING.encode() not in said:
        ready, _, _ = select([pipe], [], [], _STARTED_S)
        part = os.read(pipe, 4096) if ready else b""
        if not part:
            raise StoreUnavailable(
                f"the prefill side did not start: {said.decode(errors='replace').strip()}"
            )
        said += part
    line = said.decode(errors="replace").split(LISTENING, 1)[1].split()[0]
    return parse_address(line)


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``; raises ``ConfigError``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{text!r} is no address: write HOST:PORT, such as 127.0.0.1:7100.")
    return host.strip("[]"), int(port)


def dumps(config: TransferConfig, outcome: Outcome) -> str:
    """All of it as JSON: nanoseconds, bytes and GB/s; intervals as half-widths."""
    document = {
        "dsv4kv": __version__,
        "config": config.model_dump(mode="json"),
        "runs": [asdict(run, dict_factory=_without_arms) for run in outcome.runs],
        "engines": {name: sent and asdict(sent) for name, sent in outcome.engines.items()},
        "skipped": outcome.skipped,
    }
    return json.dumps(document, indent=2)


def _without_arms(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name != "arms"}
