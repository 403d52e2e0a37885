"""The decode side of ``bench transfer``: receives requests, times reads, and decodes on."""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from math import ceil
from select import select
from signal import SIGTERM
from subprocess import TimeoutExpired
from time import perf_counter_ns
from typing import Any

import numpy as np

from dsv4kv import __version__
from dsv4kv.bench.build import plan_from
from dsv4kv.bench.transfer.frames import is_loopback
from dsv4kv.bench.transfer.manifest import Manifest, Memory, attach
from dsv4kv.bench.transfer.prefill import Side, cache_of
from dsv4kv.bench.transfer.receiver import (
    Moved,
    Peer,
    Read,
    Received,
    fan_out,
    plan_request,
    receive,
    receive_layers,
    timed,
)
from dsv4kv.bench.transfer.transports import LIBRARIES, NotHere, Reader, mapped
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.transfer import TRANSPORTS, TransferConfig
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
    """One transport."""

    transport: str  # its name
    moved: Mapping[str, Moved]  # what was read of every family, in all rounds' first
    rates: Mapping[str, Estimate | None]
    """GB/s of every family, of all (``all``), and of all unmerged (``unmerged``)."""
    memcpy: Estimate | None  # GB/s of one copy of as many bytes
    raw: Estimate | None  # GB/s of as many bytes over a bare socket; None where there is none
    costs: Costs  # of a read
    at_end_ns: int  # from asking for a prompt until it has come, read after its end
    by_layer_ns: int  # the same, read layer by layer while it is computed
    copies: int  # further ranks that copied it on this machine
    pages: int  # digests that were compared of the timed request
    failures: list[str] = field(default_factory=list)  # what is wrong, in sentences

    @property
    def total(self) -> Moved:
        """Of all families."""
        total = Moved()
        for each in self.moved.values():
            total.add(each)
        return total

    @property
    def limit(self) -> Estimate | None:
        """What the bytes could be moved at: a bare socket's rate, or a copy's."""
        return self.raw or self.memcpy


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
        with Decode(config, side, address, token, name) as decode:
            try:
                runs.append(decode.run())
            except NotHere as error:
                if config.transport != "all":
                    raise
                skipped.append(f"{name}: {error}")
    return Outcome(runs, engines_beside(config), skipped)


class Decode:
    """A decode side that reads by one transport."""

    def __init__(
        self,
        config: TransferConfig,
        side: Side,
        address: tuple[str, int],
        token: str,
        transport: str,
    ) -> None:
        """Connect; raises as ``Peer``."""
        self._config, self._side, self._transport = config, side, transport
        count = config.connections if transport == "tcp" else 1
        self._mapped: Reader | None = None
        with ExitStack() as stack:
            self._peer, *self._peers = (
                stack.enter_context(Peer(address, token=token, timeout_s=config.timeout_s))
                for _ in range(1 + count)
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> "Decode":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self) -> Run:
        """Move a prompt at its end and one layer by layer; then time reads of a long request."""
        peer, memory, config = self._peer, self._side.memory, self._config
        plan = plan_from(cache_of(config, config.decode, 1))
        ranks = [Memory(KVCacheManager(plan)) for _ in range(config.ranks - 1)]
        if self._transport in LIBRARIES:
            LIBRARIES[self._transport].load()  # before anything is computed for it

        def at_end(request: int) -> Received:
            manifest = peer.manifest(request)
            received = receive(memory, manifest, self._readers(manifest), merge=config.merge)
            fan_out(memory, received, ranks)
            return received

        def by_layer(request: int) -> Received:
            reader = self._readers(None)[0]
            return receive_layers(memory, peer, request, reader, merge=config.merge)

        at_end_ns, failures = self._move("at its end", at_end)
        by_layer_ns, more = self._move("layer by layer", by_layer)
        request = int(peer.ask({"op": "hold"})["request"])
        manifest = peer.manifest(request)
        readers = self._readers(manifest)
        received = receive(memory, manifest, readers, merge=config.merge)
        timings = self._measure(manifest, received, readers[0])
        self._leave(request, received)
        return Run(
            self._transport,
            received.moved,
            *timings,
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

    def _readers(self, manifest: Manifest | None) -> Sequence[Reader]:
        """Of the sender's memory: sockets, or its segment, which the first request names."""
        if self._transport == "tcp":
            return [peer.reader for peer in self._peers]
        if self._mapped is None and self._transport in LIBRARIES:
            try:
                met = self._peer.ask({"op": "meet", "by": self._transport})
            except StoreUnavailable as error:
                raise NotHere(str(error)) from None
            os.environ["MC_TRANSFER_TIMEOUT"] = str(ceil(self._config.timeout_s))
            library = LIBRARIES[self._transport](self._side.memory, self._peer.wire.here)
            library.connect(met, self._config.timeout_s)
            self._mapped = library
        if self._mapped is None:
            assert manifest is not None
            try:
                segment = attach(manifest.segment)
            except StoreUnavailable as error:
                raise NotHere(str(error)) from None
            self._peer.ask({"op": "mapped"})
            self._mapped = mapped(segment.bytes, manifest.regions)
        return [self._mapped]

    def _measure(
        self, manifest: Manifest, received: Received, reader: Reader
    ) -> tuple[dict[str, Estimate | None], Estimate | None, Estimate | None, Costs]:
        """Read everything again and again, each time next to a copy and a bare socket."""
        memory, merge = self._side.memory, self._config.merge
        reads = {
            name: plan_request(memory, manifest, received, name, merge=merge)
            for name in memory.families
        }
        single = [
            plan_request(memory, manifest, received, name, merge=False) for name in memory.families
        ]
        pages = max(single, key=lambda read: int(read.places[:, 2].sum()))
        size = sum(int(read.places[:, 2].sum()) for read in reads.values())
        left, right = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
        spent: dict[str, list[int]] = {
            name: [] for name in (*reads, "all", "unmerged", "memcpy", "raw")
        }
        fitted: list[tuple[float, float, float]] = []
        for number in range(self._config.rounds + 1):
            if number == 1:  # the first warms up
                spent = {name: [] for name in spent}
                fitted = []
            for name, read in reads.items():
                spent[name].append(timed(reader, read).read_ns)
            spent["all"].append(sum(spent[name][-1] for name in reads))
            spent["unmerged"].append(sum(timed(reader, read).read_ns for read in single))
            spent["memcpy"].append(_timed(lambda: np.copyto(right, left)))
            if self._transport == "tcp":
                raw = partial(self._peers[0].read_raw, right.data)
                spent["raw"].append(_timed(raw))
            fitted.append(_fit(reader, pages))
        sizes = {name: int(read.places[:, 2].sum()) for name, read in reads.items()}
        rates = {
            name: _rate(sizes.get(name, size), times) if times else None
            for name, times in spent.items()
        }
        costs = Costs(*(summarize(values).estimate for values in zip(*fitted, strict=True)))
        return rates, rates.pop("memcpy"), rates.pop("raw"), costs


def _rate(size: int, times_ns: Sequence[int]) -> Estimate:
    """GB/s by the median: other processes of the machine make some rounds long."""
    return divide(Estimate(size, 0.0), summarize(times_ns).estimate)


def _timed(call: Callable[[], object]) -> int:
    start = perf_counter_ns()
    call()
    return perf_counter_ns() - start


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
        return _timed(partial(reader.read, np.stack(columns, axis=1), views))

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
        "runs": [_run(run) for run in outcome.runs],
        "engines": {name: sent and asdict(sent) for name, sent in outcome.engines.items()},
        "skipped": outcome.skipped,
    }
    return json.dumps(document, indent=2)


def _run(run: Run) -> dict[str, Any]:
    return {
        "transport": run.transport,
        "families": {
            name: asdict(moved) | {"gbps": _estimate(run.rates[name])}
            for name, moved in run.moved.items()
        },
        "gbps": _estimate(run.rates["all"]),
        "unmerged_gbps": _estimate(run.rates["unmerged"]),
        "memcpy_gbps": _estimate(run.memcpy),
        "socket_gbps": _estimate(run.raw),
        "costs": {name: _estimate(value) for name, value in vars(run.costs).items()},
        "at_end_ns": run.at_end_ns,
        "by_layer_ns": run.by_layer_ns,
        "copies": run.copies,
        "pages": run.pages,
        "failures": run.failures,
    }


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "half_width": estimate.half_width}
