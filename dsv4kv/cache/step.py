"""The tokens of one step as tensors: built once, read by every layer's operations."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from dsv4kv.cache.manager import BlockTable, EntryGroup, KVCacheManager, stage
from dsv4kv.errors import CacheError

EntryFamily = tuple[BlockTable, int, int]
"""Table, ratio and entries per block: the entries of its lanes are worked out together."""

Change = Callable[[Tensor], Tensor]

_NO_SLOT, _NO_ENTRY = -1, -1


class Completed(NamedTuple):
    """Tokens of a step that complete an entry of one compress ratio."""

    slots: Tensor  # int64[E], slots of their requests
    positions: Tensor  # int64[E], their positions; (position + 1) mod ratio is 0
    # int64[E], physical entries to write, in the pages of one table lane; −1 is none
    entries: Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """Numbers of a step, on the host or where the cache is."""

    request_slots: Tensor  # int64[B], slot of every request; −1 is no request
    tokens_after: Tensor  # int64[B], tokens of every request once the step is done
    token_slots: Tensor  # int64[T], slot of every token; −1 is no token
    positions: Tensor  # int64[T], position of every token, ascending within a request
    # int64[B] by ratio, valid entries of every request after the step
    lengths: Mapping[int, Tensor]
    # int64[T] by ratio, entries that each token sees; of ratio 1 the tokens so far
    seen: Mapping[int, Tensor]
    # int64[T] by group, the entry that each token completes; −1 where none
    entries: Mapping[EntryGroup, Tensor]
    completed: Mapping[EntryGroup, Completed]  # the tokens that complete an entry, by group
    # int64[T], request (0 … B − 1) of every token, on the host; empty in ``room``
    request_ids: Tensor
    # slot and position of the first token; of a ``room`` nothing
    first_token: tuple[int, int] = (0, 0)
    # where kernels work entries out, int64[lanes, T] each; only in ``room``
    families: Mapping[EntryFamily, Tensor] = field(default_factory=dict)
    _numbers: Tensor | None = None

    @property
    def num_requests(self) -> int:
        return len(self.request_slots)

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @classmethod
    def of(
        cls, manager: KVCacheManager, request_slots: ArrayLike, before: ArrayLike, after: ArrayLike
    ) -> "Step":
        """Tokens before … after − 1 of every request; the step must have been prepared.

        Raises:
            CacheError: A request is not prepared for that many tokens, or gains none.
            NotOwner: No request runs in a slot, or one is named twice.
        """
        # Copies: a step stays what it is when the caller moves its own positions on.
        slots, first, end = (np.array(a, dtype=np.int64) for a in (request_slots, before, after))
        manager.check_running(slots)
        counts = end - first
        if slots.size == 0 or counts.min() < 1 or not np.array_equal(manager.tokens[slots], end):
            raise CacheError("a step takes at least one prepared token of every request.")
        ids = np.repeat(np.arange(len(slots), dtype=np.int64), counts)
        positions = np.arange(len(ids)) + (end - np.cumsum(counts))[ids]
        token_slots, so_far = slots[ids], positions + 1
        ratios = {ratio for _, _, ratio, _ in manager.entry_groups}
        entries, completed = {}, {}
        for group in manager.entry_groups:
            table, lane, ratio, per_block = group
            done = so_far % ratio == 0
            where = token_slots[done], positions[done]
            logical = where[1] // ratio
            blocks = table.blocks[lane, where[0], logical // per_block].astype(np.int64)
            found = blocks * per_block + logical % per_block
            every = np.full(len(ids), _NO_ENTRY)
            every[done] = found
            entries[group] = torch.from_numpy(every)
            completed[group] = Completed(*map(torch.from_numpy, (*where, found)))
        return cls(
            request_slots=torch.from_numpy(slots),
            tokens_after=torch.from_numpy(end),
            token_slots=torch.from_numpy(token_slots),
            positions=torch.from_numpy(positions),
            lengths={ratio: torch.from_numpy(end // ratio) for ratio in ratios},
            seen={ratio: torch.from_numpy(so_far // ratio) for ratio in {1, *ratios}},
            entries=entries,
            completed=completed,
            request_ids=torch.from_numpy(ids),
            first_token=(int(slots[0]), int(positions[0])),
        )

    @classmethod
    def room(
        cls, groups: Iterable[EntryGroup], requests: int, tokens_each: int, device: torch.device
    ) -> "Step":
        """Room for ``requests`` requests of ``tokens_each`` tokens, which never moves.

        ``fill`` takes a step's numbers over. What is left over is no request and no token, and
        operations do nothing for it. Entries are worked out where the numbers are.
        """
        groups, tokens = list(groups), requests * tokens_each
        families = {
            (table, ratio, each): torch.full((table.group.lanes, tokens), _NO_ENTRY, device=device)
            for table, _, ratio, each in groups
        }
        ratios = sorted({ratio for _, _, ratio, _ in groups})
        sizes = [requests, tokens, tokens, requests]
        sizes += [requests] * len(ratios) + [tokens] * len({1, *ratios})
        numbers = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        slots, token_slots, positions, after, *rest = torch.split_with_sizes(numbers, sizes)
        step = cls(
            request_slots=slots,
            tokens_after=after,
            token_slots=token_slots,
            positions=positions,
            lengths=dict(zip(ratios, rest, strict=False)),
            seen=dict(zip(sorted({1, *ratios}), rest[len(ratios) :], strict=True)),
            entries={g: families[g[0], g[2], g[3]][g[1]] for g in groups},
            completed={},
            request_ids=torch.empty(0, dtype=torch.int64),
            families=families,
            _numbers=numbers,
        )
        step.fill(None)
        return step.first(requests)

    def first(self, requests: int) -> "Step":
        """The numbers of the first requests of a ``room``; shares its memory."""
        tokens = requests * (self.num_tokens // self.num_requests)
        step = self._changed(lambda each: each[:requests], lambda each: each[:tokens])
        numbers = step.token_slots, step.positions
        done = {group: Completed(*numbers, each) for group, each in step.entries.items()}
        return replace(step, completed=done)

    def _changed(self, of_request: Change, of_token: Change) -> "Step":
        """The same with its numbers changed, those by request and those by token."""
        return replace(
            self,
            request_slots=of_request(self.request_slots),
            tokens_after=of_request(self.tokens_after),
            token_slots=of_token(self.token_slots),
            positions=of_token(self.positions),
            lengths={ratio: of_request(each) for ratio, each in self.lengths.items()},
            seen={ratio: of_token(each) for ratio, each in self.seen.items()},
            entries={group: of_token(each) for group, each in self.entries.items()},
            completed={g: Completed(*map(of_token, done)) for g, done in self.completed.items()},
        )

    def fill(self, step: "Step | None") -> None:
        """Let a ``room`` hold a step of the host, or none, in one transfer."""
        assert self._numbers is not None
        numbers = np.zeros(len(self._numbers), dtype=np.int64)
        numbers[: self.num_requests + self.num_tokens] = _NO_SLOT
        start, sources = 0, step._counted() if step else iter(())
        for target in self._counted():
            if (source := next(sources, None)) is not None:
                numbers[start : start + len(source)] = source.numpy()
            start += len(target)
        staged = torch.from_numpy(numbers)
        if self._numbers.is_cuda:
            staged = staged.pin_memory()  # a fresh one: the last may still be on its way
        self._numbers.copy_(staged, non_blocking=True)

    def _counted(self) -> Iterator[Tensor]:
        """What ``fill`` takes over, in the order of a room's memory."""
        yield from (self.request_slots, self.token_slots, self.positions, self.tokens_after)
        yield from (self.lengths[ratio] for ratio in sorted(self.lengths))
        yield from (self.seen[ratio] for ratio in sorted(self.seen))

    def to(self, device: torch.device) -> "Step":
        """The same on a device, in one transfer; the host's own memory as it is."""
        if device.type == "cpu":
            return self
        given: list[Tensor] = []

        def keep(each: Tensor) -> Tensor:
            given.append(each)
            return each

        self._changed(keep, keep)
        sizes = [len(each) for each in given]
        staged = iter(torch.split_with_sizes(stage(torch.cat(given), device), sizes))
        return self._changed(lambda _: next(staged), lambda _: next(staged))
