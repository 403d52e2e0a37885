"""Slots: a contiguous row of KV for every request, versions, and a radix tree of tokens."""

import gc
import tracemalloc
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial

import numpy as np

from dsv4kv.bench.systems.rows import Found, PrefixCacheManager, Seat, SlotAllocator, SlotScheduler
from dsv4kv.bench.systems.workload import (
    KV_WORDS,
    VOCABULARY,
    Chat,
    Kv,
    Model,
    Outcome,
    Tokens,
    Turn,
    Unit,
)
from dsv4kv.config.systems import SystemsConfig
from dsv4kv.core.tree import Lease

_SLOTS = 1024  # of the allocator that is timed


_COUNTED: dict[str, Unit] = {
    "prompt tokens": "tokens",
    "of them reused": "tokens",
    "of those copied from another slot": "tokens",
    "requests in a slot as it was": "requests",
    "requests whose slot had changed": "requests",  # between being queued and starting
}


class KvRows:
    """One row of KV for each slot."""

    def __init__(self, slots: int, tokens: int) -> None:
        self.kv = np.zeros((slots, tokens, KV_WORDS), dtype=np.uint64)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first tokens of a row to another."""
        self.kv[target, :tokens] = self.kv[source, :tokens]


@dataclass
class _Running:
    turn: Turn
    seat: Seat
    tokens: Tokens


class SlotServer:
    """Serves conversations over rows, a decode step of all that are seated at a time."""

    def __init__(self, config: SystemsConfig, model: Model) -> None:
        section = config.slots
        self.rows = KvRows(section.slots, config.chat.longest_tokens)
        self.slots = SlotAllocator(section.slots)
        self.cache = PrefixCacheManager(
            section.cached_tokens, None, self.rows.copy, self.slots.version
        )
        self.reuse, self.outcome = Counter[str](), Outcome("slots", config.calls)
        self._model, self._chat = model, Chat(config.chat, config.seed)
        self._scheduler = SlotScheduler(self.slots, self.cache)
        self._waiting: deque[tuple[Turn, Found]] = deque()
        self._running: list[_Running] = []

    def serve(self) -> None:
        """Answer all questions."""
        self._queue(self._chat.first())
        while self._waiting or self._running:
            self._seat()
            for running in list(self._running):
                self._decode(running)
        pinned = self.cache.tree.pinned
        held = self.slots.max_slots - self.slots.free_count
        sentence = f"{pinned} tokens are still pinned and {held} slots taken at the end."
        self.outcome.check("end", not pinned and not held, sentence)

    def _queue(self, turns: list[Turn]) -> None:
        for turn in turns:  # one token is computed in any case
            self._waiting.append((turn, self._scheduler.find(turn.prompt[:-1])))

    def _seat(self) -> None:
        while self._waiting:
            turn, found = self._waiting[0]
            seat = self._scheduler.begin(turn.prompt, found)
            if seat is None:
                return
            self._waiting.popleft()
            self.reuse["prompt tokens"] += len(turn.prompt)
            self.reuse["of them reused"] += seat.start
            self.reuse["of those copied from another slot"] += seat.copied
            self.reuse["requests in a slot as it was"] += seat.start > 0 and not seat.copied
            self.reuse["requests whose slot had changed"] += found.length > 0 and not seat.start
            running = _Running(turn, seat, turn.prompt)
            self._compute(running, seat.start)
            self._scheduler.record(seat, turn.prompt)
            self._running.append(running)

    def _compute(self, running: _Running, start: int) -> None:
        row: Kv = self.rows.kv[running.seat.slot]
        before = row[start - 1] if start else None
        computed = self._model.compute(running.tokens[start:], before)
        row[start : len(running.tokens)] = computed

    def _decode(self, running: _Running) -> None:
        tokens, turn, slot = running.tokens, running.turn, running.seat.slot
        if len(tokens) < len(turn.prompt) + turn.answer_tokens:
            last: Kv = self.rows.kv[slot, len(tokens) - 1]
            running.tokens = np.concatenate([tokens, self._model.next_token(last)])
            self._compute(running, len(tokens))
            return
        found, where = self.rows.kv[slot, : len(tokens)], f" in slot {slot}"
        self.outcome.check_answer(self._model, turn, tokens, found, where)
        self._scheduler.end(running.seat, tokens)
        self._running.remove(running)
        self._queue(self._chat.after(turn, tokens))


def run_slots(config: SystemsConfig, model: Model) -> Outcome:
    """Serve the conversations over rows, and time the calls."""
    server = SlotServer(config, model)
    outcome = server.outcome
    server.serve()
    outcome.counted("rows of KV", "B", server.rows.kv.nbytes)
    for quantity, unit in _COUNTED.items():
        outcome.counted(quantity, unit, server.reuse[quantity])
    if config.calls.seconds:
        random, length = np.random.default_rng(config.seed), config.calls.prompt_tokens
        prompts = [random.integers(0, VOCABULARY, length).astype(np.int32) for _ in range(4)]
        _time_slots(outcome)
        _time_tree(outcome, prompts)
    return outcome


def _time_slots(outcome: Outcome) -> None:
    slots = SlotAllocator(_SLOTS)
    for _ in range(_SLOTS // 2):
        slots.alloc()

    def free() -> None:
        if not slots.is_free(100):
            slots.free(100)

    def occupy() -> None:
        if slots.is_free(100):
            slots.occupy(100)

    outcome.timed("alloc", slots.alloc, free)
    outcome.timed("free", partial(slots.free, 100), occupy)
    outcome.timed("occupy", partial(slots.occupy, 100), free)


def _time_tree(outcome: Outcome, prompts: list[Tokens]) -> None:
    length, new, leases = len(prompts[0]), prompts[0].copy(), list[Lease]()
    cache = PrefixCacheManager(10**9)
    for slot, prompt in enumerate(prompts):
        cache.insert_row(prompt, slot, 1)

    def renew() -> None:
        new[0] += 1  # all of a prompt that begins differently is new

    outcome.timed(f"insert {length:,} tokens", lambda: cache.insert_row(new.copy(), 9, 1), renew)
    outcome.timed(f"find {length:,} tokens", partial(cache.find, prompts[1]))
    outcome.timed("pin", lambda: leases.append(cache.pin(prompts[1])))
    pin = partial(cache.pin, prompts[2])
    outcome.timed("release", lambda: cache.release(leases.pop()), lambda: leases.append(pin()))
    copies = PrefixCacheManager(10**9, None, KvRows(2, length).copy)
    copies.insert_row(prompts[0], 0, 1)
    outcome.timed(
        f"copy_kv, {length:,} tokens of {8 * KV_WORDS} B", partial(copies.copy_kv, prompts[0], 1)
    )
    gc.collect()
    tracemalloc.start()
    held = PrefixCacheManager(10**9)
    for slot, prompt in enumerate(prompts):
        held.insert_row(prompt, slot, 1)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    outcome.counted("memory of a cached token", "B", size / (length * len(prompts)))
