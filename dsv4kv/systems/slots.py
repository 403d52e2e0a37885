"""Slots: a contiguous row of KV for every request, a bitmask of free ones, a tree of tokens."""

import gc
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from dsv4kv.cache.allocators.bitmask import SlotAllocator
from dsv4kv.config.systems import SystemsConfig
from dsv4kv.measure.statistics import Estimate
from dsv4kv.prefix.rows import PrefixCacheManager, SlotScheduler
from dsv4kv.systems.chat import Chat, Turn, generate
from dsv4kv.systems.contents import KV_WORDS, Kv, Model, Tokens
from dsv4kv.systems.outcome import Checks, Outcome, Row, Unit, exact
from dsv4kv.systems.plain.slots import PlainRadix, PlainScheduler, PlainSlots
from dsv4kv.systems.timing import CallTimer, Timed

SYSTEM = "slots"


class Scheduler(Protocol):
    """What seats requests: ``SlotScheduler``, or its plain re-statement."""

    def find(self, tokens: Any) -> Any:
        """The longest prefix that a slot holds."""

    def begin(self, tokens: Any, found: Any) -> Any:
        """Seat a prompt: (slot, start, copied), or None."""

    def record(self, seat: Any, tokens: Any) -> None:
        """A slot holds the KV of tokens."""

    def end(self, seat: Any, tokens: Any) -> None:
        """Leave a slot that holds the KV of tokens."""


@dataclass
class Reuse:
    """What serving reused.

    Attributes:
        prompt_tokens: Tokens of all prompts.
        reused: Those of them that were not computed again.
        copied: Those of the reused that were copied from another slot.
        occupied: Requests that took a slot as it was.
        stale: Requests whose slot had changed between being queued and starting.
    """

    prompt_tokens: int = 0
    reused: int = 0
    copied: int = 0
    occupied: int = 0
    stale: int = 0


_REUSE: dict[str, tuple[str, Unit]] = {
    "prompt_tokens": ("prompt tokens", "tokens"),
    "reused": ("of them reused", "tokens"),
    "copied": ("of those copied from another slot", "tokens"),
    "occupied": ("requests in a slot as it was", "requests"),
    "stale": ("requests whose slot had changed", "requests"),
}


@dataclass
class _Running:
    turn: Turn
    seat: Any
    tokens: Tokens


class Rows:
    """One row of KV for each slot."""

    def __init__(self, slots: int, tokens: int) -> None:
        self.kv = np.zeros((slots, tokens, KV_WORDS), dtype=np.uint64)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first tokens of a row to another."""
        self.kv[target, :tokens] = self.kv[source, :tokens]


class SlotServer:
    """Serves conversations over rows, a decode step of all that are seated at a time."""

    def __init__(
        self,
        model: Model,
        chat: Chat,
        rows: Rows,
        scheduler: Scheduler,
        encode: Callable[..., Any],
    ) -> None:
        """``encode`` makes of int32 tokens what the scheduler takes."""
        self.reuse, self.checks = Reuse(), Checks()
        self._model, self._chat, self._rows = model, chat, rows
        self._scheduler, self._encode = scheduler, encode
        self._waiting: deque[tuple[Turn, Any]] = deque()
        self._running: list[_Running] = []

    def serve(self) -> None:
        """Answer all questions."""
        self._queue(self._chat.first())
        while self._waiting or self._running:
            self._seat()
            for running in list(self._running):
                self._decode(running)

    def _queue(self, turns: list[Turn]) -> None:
        for turn in turns:
            before_last = self._encode(turn.prompt[:-1])  # one token is computed in any case
            self._waiting.append((turn, self._scheduler.find(before_last)))

    def _seat(self) -> None:
        while self._waiting:
            turn, found = self._waiting[0]
            seat = self._scheduler.begin(self._encode(turn.prompt), found)
            if seat is None:
                return
            self._waiting.popleft()
            self._count(turn, found, seat)
            running = _Running(turn, seat, turn.prompt)
            self._compute(running, seat.start)
            self._scheduler.record(seat, self._encode(turn.prompt))
            self._running.append(running)

    def _count(self, turn: Turn, found: Any, seat: Any) -> None:
        reuse = self.reuse
        reuse.prompt_tokens += len(turn.prompt)
        reuse.reused += seat.start
        reuse.copied += seat.copied
        reuse.occupied += seat.start > 0 and not seat.copied
        reuse.stale += found[0] > 0 and not seat.start

    def _compute(self, running: _Running, start: int) -> None:
        """Compute tokens from ``start`` on, from what the row holds before them."""
        row: Kv = self._rows.kv[running.seat.slot]
        end = len(running.tokens)
        before = row[start - 1] if start else None
        row[start:end] = self._model.compute(running.tokens[start:], before)

    def _decode(self, running: _Running) -> None:
        tokens, turn = running.tokens, running.turn
        if len(tokens) == len(turn.prompt) + turn.answer_tokens:
            self._finish(running)
            return
        last: Kv = self._rows.kv[running.seat.slot, len(tokens) - 1]
        token = np.array([self._model.next_token(last)], dtype=np.int32)
        running.tokens = np.concatenate([tokens, token])
        self._compute(running, len(tokens))

    def _finish(self, running: _Running) -> None:
        turn, tokens, slot = running.turn, running.tokens, running.seat.slot
        who = f"question {turn.number} of user {turn.user} in slot {slot}"
        found, right = self._rows.kv[slot, : len(tokens)], self._model.compute(tokens, None)
        equal = np.array_equal(found, right)
        self.checks.check("KV", equal, f"slots: the KV of {who} is another's.", len(tokens))
        equal = np.array_equal(tokens, generate(self._model, turn))
        sentence = f"slots: the answer to {who} is not the one without a cache."
        self.checks.check("tokens", equal, sentence, turn.answer_tokens)
        self._scheduler.end(running.seat, self._encode(tokens))
        self._running.remove(running)
        self._queue(self._chat.after(turn, tokens))


def run_slots(config: SystemsConfig, model: Model) -> Outcome:
    """Serve the conversations over rows, and time the calls."""
    ours, rows, slots, cache = serve(config, model)
    plain = serve_plain(config, model)
    timer = CallTimer(SYSTEM, config.calls)
    count = timer.count
    count(Row(SYSTEM, "rows of KV", "B", exact(rows.kv.nbytes)))
    for name, (quantity, unit) in _REUSE.items():
        pair = exact(getattr(ours.reuse, name)), exact(getattr(plain.reuse, name))
        count(Row(SYSTEM, quantity, unit, *pair))
    wrong = exact(len(ours.checks.failures)), exact(len(plain.checks.failures))
    count(Row(SYSTEM, "wrong outputs", "outputs", *wrong))
    pinned, held = cache.tree.pinned, config.slots.slots - slots.free_count
    sentence = f"slots: {pinned} tokens are still pinned and {held} slots taken at the end."
    ours.checks.check("end", not pinned and not held, sentence)
    if config.calls.seconds:
        time_calls(config, timer)
    return Outcome(SYSTEM, timer.rows, ours.checks)


Served = tuple[SlotServer, Rows, SlotAllocator, PrefixCacheManager]


def serve(config: SystemsConfig, model: Model) -> Served:
    """Serve by the package."""
    section, rows = config.slots, Rows(config.slots.slots, config.chat.longest_tokens)
    slots = SlotAllocator(section.slots)
    cache = PrefixCacheManager(section.cached_tokens, None, rows.copy, slots.version)
    scheduler = SlotScheduler(slots, cache)
    server = SlotServer(model, Chat(config.chat, config.seed), rows, scheduler, np.asarray)
    server.serve()
    return server, rows, slots, cache


def serve_plain(config: SystemsConfig, model: Model) -> SlotServer:
    """Serve by the plain re-statement."""
    rows = Rows(config.slots.slots, config.chat.longest_tokens)
    scheduler = PlainScheduler(config.slots.slots, rows.copy)
    chat = Chat(config.chat, config.seed)
    server = SlotServer(model, chat, rows, scheduler, lambda tokens: tokens.tolist())
    server.serve()
    return server


def time_calls(config: SystemsConfig, timer: CallTimer) -> None:
    """Time the calls of allocator and tree."""
    _time_slots(timer, SlotAllocator(1024), PlainSlots(1024))
    random = np.random.default_rng(config.seed)
    length = config.calls.prompt_tokens
    prompts = [random.integers(0, 129_280, length).astype(np.int32) for _ in range(4)]
    _time_tree(timer, prompts)
    _time_copy(timer, prompts[0])
    _count_memory(timer, prompts)


def _time_slots(timer: CallTimer, ours: SlotAllocator, plain: PlainSlots) -> None:
    for _ in range(512):
        ours.alloc()
        plain.alloc()
    timer.time(
        "alloc", Timed(ours.alloc, _freed(ours, 100)), Timed(plain.alloc, _freed(plain, 100))
    )
    for slots in (ours, plain):
        if slots.is_free(100):
            slots.occupy(100)
    timer.time(
        "free",
        Timed(partial(ours.free, 100), _occupied(ours, 100)),
        Timed(partial(plain.free, 100), _occupied(plain, 100)),
    )
    timer.time(
        "occupy",
        Timed(partial(ours.occupy, 100), _freed(ours, 100)),
        Timed(partial(plain.occupy, 100), _freed(plain, 100)),
    )


def _freed(slots: SlotAllocator | PlainSlots, slot: int) -> Callable[[], None]:
    return lambda: None if slots.is_free(slot) else slots.free(slot)


def _occupied(slots: SlotAllocator | PlainSlots, slot: int) -> Callable[[], None]:
    return lambda: slots.occupy(slot) if slots.is_free(slot) else None


def _time_tree(timer: CallTimer, prompts: list[Tokens]) -> None:
    """Insert, find, pin and release one of several prompts that are cached."""
    made: list[Any] = [PrefixCacheManager(10**9), PlainRadix()]
    cache, tree = made
    words = [prompt.tolist() for prompt in prompts]
    for slot, prompt in enumerate(prompts):
        cache.insert_row(prompt, slot, 1)
        tree.insert(words[slot], slot, 1)
    new = Renewed(prompts[0])
    timer.time(
        f"insert {len(prompts[0]):,} tokens",
        Timed(lambda: cache.insert_row(new.prompt, 9, 1), new.next),
        Timed(lambda: tree.insert(new.words, 9, 1), new.next),
    )
    timer.time(
        f"find {len(prompts[0]):,} tokens",
        Timed(lambda: cache.find(prompts[1])),
        Timed(lambda: tree.find(words[1])),
    )
    timer.time(f"match {len(prompts[0]):,} tokens, no use", Timed(lambda: cache.match(prompts[1])))
    leases: list[Any] = []
    timer.time(
        "pin",
        Timed(lambda: leases.append(cache.pin(prompts[1]))),
        Timed(lambda: tree.pin(words[1])),
    )
    timer.time(
        "release",
        Timed(lambda: cache.release(leases.pop()), lambda: leases.append(cache.pin(prompts[2]))),
        Timed(lambda: tree.release(words[2]), lambda: tree.pin(words[2])),
    )


class Renewed:
    """A prompt that begins differently every time, so that all of it is new."""

    def __init__(self, prompt: Tokens) -> None:
        self.prompt, self.words = prompt.copy(), prompt.tolist()

    def next(self) -> None:
        """Begin with another token."""
        self.prompt = self.prompt.copy()
        self.prompt[0] += 1
        self.words[0] += 1


def _time_copy(timer: CallTimer, prompt: Tokens) -> None:
    rows = Rows(2, len(prompt))
    cache = PrefixCacheManager(10**9, None, rows.copy)
    cache.insert_row(prompt, 0, 1)
    tree = PlainRadix()
    words = prompt.tolist()
    tree.insert(words, 0, 1)
    timer.time(
        f"copy_kv, {len(prompt):,} tokens of {8 * KV_WORDS} B",
        Timed(lambda: cache.copy_kv(prompt, 1)),
        Timed(lambda: rows.copy(tree.find(words)[1], 1, len(words))),
    )


def _count_memory(timer: CallTimer, prompts: list[Tokens]) -> None:
    tokens = sum(map(len, prompts))

    def ours() -> object:
        cache = PrefixCacheManager(10**9)
        for slot, prompt in enumerate(prompts):
            cache.insert_row(prompt, slot, 1)
        return cache

    def plain() -> object:
        tree = PlainRadix()
        for slot, prompt in enumerate(prompts):
            tree.insert(prompt.tolist(), slot, 1)
        return tree

    pair = [Estimate(_traced_bytes(make) / tokens, 0.0) for make in (ours, plain)]
    timer.count(Row(SYSTEM, "memory of a cached token", "B", *pair))


def _traced_bytes(make: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    made = make()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del made
    return held
