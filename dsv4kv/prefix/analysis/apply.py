"""Strategies for windows and states on a whole trace, over a cache of blocks evicted by age.

A checkpoint belongs to the block it ends at, and goes when the block does; a block that is
computed again comes back without it.
"""

from bisect import bisect_right
from itertools import islice
from math import lcm

import numpy as np

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.analysis.losses import Losses
from dsv4kv.prefix.analysis.outcome import Outcome
from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.reuse import Reuse
from dsv4kv.prefix.analysis.strategy import Strategy

_NOTHING: list[int] = []


def apply_strategy(
    strategy: Strategy,
    table: PathTable,
    reuse: Reuse,
    capacity_blocks: int | None = None,
    *,
    snap: bool = True,
) -> Outcome:
    """Replay a trace, one request after the other.

    Args:
        strategy: What is kept.
        table: The trace.
        reuse: Its reuse, partial blocks included.
        capacity_blocks: Blocks of the cache; None never evicts.
        snap: Move a prompt's last checkpoint out of its partial last block, which never comes
            again. Without, such checkpoints are written, counted, and never found.

    Raises:
        ConfigError: A period that does not fit the blocks.
    """
    grain, period = reuse.grain_tokens, strategy.period_tokens
    if strategy.kind == "periodic" and period % grain and grain % period:
        raise ConfigError(
            f"a period of {period} tokens does not fit blocks of {grain}: take a multiple of "
            f"{grain}, or a divisor."
        )
    once, found = reuse.found_tokens(None), reuse.found_tokens(capacity_blocks)
    whole = found // grain * grain
    ends = reuse.tokens // lcm(grain, table.block_tokens) * lcm(grain, table.block_tokens)
    if strategy.keeps_marks:
        resumed, forgotten, kept = _follow_marks(strategy, reuse, whole, ends)
    else:
        resumed, forgotten = _resume_all(strategy, whole), 0
        kept = int((ends // period - whole // period).clip(0).sum()) if period else 0
    inside = _count_inside(strategy, reuse.tokens, ends)
    kept += 0 if snap else inside
    short = int((whole - resumed).sum())
    losses = Losses(
        evicted_block=int((once - found).sum()),
        alignment=int((found - whole).sum()),
        evicted_checkpoint=forgotten,
        replay=short if strategy.kind == "zero" else 0,
        no_checkpoint=0 if strategy.kind == "zero" else short - forgotten,
    )
    return Outcome(
        strategy.name,
        resumed,
        table.total_input_tokens,
        losses,
        found_tokens=int(whole.sum()),
        checkpoints=kept,
        checkpoint_tokens=(
            table.total_input_tokens - int(whole.sum())
            if strategy.kind == "full"
            else kept * strategy.window_tokens
        ),
        checkpoint_reads=0 if strategy.kind == "zero" else int((resumed > 0).sum()),
        unreachable_checkpoints=0 if snap else inside,
    )


def _count_inside(strategy: Strategy, tokens: Ints, ends: Ints) -> int:
    """Checkpoints that would lie in the partial last blocks of prompts."""
    if strategy.keeps_marks:
        return int((tokens > ends).sum())
    period = strategy.period_tokens
    return int((tokens // period - ends // period).sum()) if period else 0


def _resume_all(strategy: Strategy, whole: Ints) -> Ints:
    """The vector form of ``Strategy.resume_tokens`` where no marks are needed."""
    if strategy.kind == "periodic":
        return whole // strategy.period_tokens * strategy.period_tokens
    return np.maximum(0, whole - strategy.replay_tokens)


def _follow_marks(
    strategy: Strategy, reuse: Reuse, whole: Ints, ends: Ints
) -> tuple[Ints, int, int]:
    """Walk all requests with the checkpoints on their paths.

    Every request lists those of its own path, in tokens and rising: what is there, and what was,
    once. The owner of a stretch has touched it last, so its lists are up to date there.

    Returns:
        Tokens resumed, tokens short for want of a checkpoint that was there once, and checkpoints
        written.
    """
    grain = reuse.grain_tokens
    stretches = zip(
        *(column.tolist() for column in (reuse.owner, reuse.begin * grain, reuse.end * grain)),
        strict=True,
    )
    counts = np.bincount(reuse.request, minlength=len(whole)).tolist()
    resumed: list[int] = []
    there_of: list[list[int]] = []
    gone_of: list[list[int]] = []
    forgotten = written = 0
    for request, (found, end) in enumerate(zip(whole.tolist(), ends.tolist(), strict=True)):
        there: list[int] = []
        gone: list[int] = []
        for owner, begin, stop in islice(stretches, counts[request]):
            there += _between(there_of[owner], begin, stop)
            if gone_of[owner]:
                gone += _between(gone_of[owner], begin, stop)
        if there and there[-1] > found:
            kept = bisect_right(there, found)
            gone = sorted(gone + there[kept:])
            del there[kept:]
        start = there[-1] if there else 0
        resumed.append(start)
        new = strategy.places_to_keep(start, found, end)
        if gone:
            forgotten += max(0, *gone[: bisect_right(gone, found)], start) - start
            gone = [mark for mark in gone if mark not in new]
        written += len(new)
        there += new  # behind the last, for that is where computing began
        there_of.append(there)
        gone_of.append(gone or _NOTHING)
    return np.array(resumed, np.int64), forgotten, written


def _between(marks: list[int], begin: int, stop: int) -> list[int]:
    """Rising marks above ``begin`` and up to ``stop``."""
    return marks[bisect_right(marks, begin) : bisect_right(marks, stop)]
