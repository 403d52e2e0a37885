"""Strategies for windows and states, and policies of eviction, on a whole trace.

Strategies are over a cache of blocks evicted by age.  A checkpoint belongs to the block it ends
at, and goes when the block does; a block that is computed again comes back without it.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import lcm

import numpy as np

from dsv4kv.choices import STRATEGIES, unknown
from dsv4kv.core.paths import NumberedPaths
from dsv4kv.core.policies import OFFLINE, make_policy
from dsv4kv.core.strategy import Strategy
from dsv4kv.core.tree import PrefixTree
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config, build_schedule
from dsv4kv.model.plan import at_whole_block, build_schema, bytes_per_token
from dsv4kv.replay.rules import Outcome
from dsv4kv.traces.paths import Ints, PathTable, Reuse

_PLAIN = ("full", "ends", "ends+junctions")


def parse_strategy(text: str, *, window_tokens: int, layers: int) -> Strategy:
    """Read a strategy as users write it; raises ``ConfigError``.

    ``zero`` computes the last ``window_tokens`` × ``layers`` tokens again, which is exact.
    ``zero:bounded`` computes one window that ends with the first new token, the earlier tokens'
    own windows cut off. A model without windows (DeepSeek-V3.2) needs nothing but blocks to go on:
    every strategy is ``full``.
    """
    replays = {"zero": window_tokens * layers, "zero:bounded": window_tokens - 1}
    if match := re.fullmatch(r"periodic:([0-9]{1,9})", text):
        if not int(match[1]):
            raise ConfigError("periodic:0 has no period: write periodic:4096.")
        found = Strategy(text, "periodic", window_tokens, period_tokens=int(match[1]))
    elif text in replays:
        found = Strategy(text, "zero", window_tokens, replay_tokens=replays[text])
    elif text in _PLAIN:
        found = Strategy(text, text, window_tokens)
    else:
        raise unknown(STRATEGIES, text, "a strategy")
    return found if window_tokens else Strategy(text, "full", 0)


@dataclass(frozen=True)
class PrefixCosts:
    """Bytes of one model's prefixes, without page padding."""

    token_bytes: Fraction  # compressed entries and indexer keys of one token of context
    window_token_bytes: int  # window entries of one token, all layers together
    state_bytes: int  # compressor states at the end of a block, where HCA layers have none
    window_tokens: int  # tokens of a window; 0 without windows
    layers: int

    @property
    def checkpoint_bytes(self) -> int:
        return self.window_tokens * self.window_token_bytes + self.state_bytes


def prefix_costs(model: DSV4Config) -> PrefixCosts:
    """Costs of a model with its own formats; raises ``ConfigError``."""
    schemas = [build_schema(model, spec) for spec in build_schedule(model)]
    window = sum(schema.window.format.entry_bytes for schema in schemas if schema.window)
    return PrefixCosts(
        token_bytes=bytes_per_token(schemas),
        window_token_bytes=window,
        state_bytes=sum(at_whole_block(schema).state_bytes for schema in schemas),
        window_tokens=model.window_tokens if window else 0,
        layers=len(schemas),
    )


_NOTHING: list[int] = []


def apply_strategy(
    strategy: Strategy,  # what is kept
    table: PathTable,  # the trace
    reuse: Reuse,  # its reuse, partial blocks included
    capacity_blocks: int | None = None,  # blocks of the cache; None never evicts
) -> Outcome:
    """Replay a trace, one request after the other; raises ``ConfigError``."""
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
        resumed, forgotten = np.maximum(0, whole - strategy.replay_tokens), 0
        kept = 0
        if period:
            resumed = whole // period * period
            kept = int((ends // period - whole // period).clip(0).sum())
    short = int((whole - resumed).sum())
    losses = {
        "evicted_block": int((once - found).sum()),
        "alignment": int((found - whole).sum()),
        "evicted_checkpoint": forgotten,
        "replay": short if strategy.kind == "zero" else 0,
        "no_checkpoint": 0 if strategy.kind == "zero" else short - forgotten,
    }
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
    )


def _follow_marks(
    strategy: Strategy, reuse: Reuse, whole: Ints, ends: Ints
) -> tuple[Ints, int, int]:
    """Walk all requests with the checkpoints on their paths, which are cached, or once were.

    The owner of a stretch has touched it last, so its lists, in tokens and rising, are up to date.
    Returns tokens resumed, tokens short of an evicted checkpoint, and checkpoints written.
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
        there += new  # after the last, for that is where computing began
        there_of.append(there)
        gone_of.append(gone or _NOTHING)
    return np.array(resumed, np.int64), forgotten, written


def _between(marks: list[int], begin: int, stop: int) -> list[int]:
    return marks[bisect_right(marks, begin) : bisect_right(marks, stop)]


def apply_policy(
    name: str, table: PathTable, reuse: Reuse, numbered: NumberedPaths, capacity_blocks: int
) -> Outcome:
    """Serve a trace from a cache that a policy empties; ``numbered`` are its prompts."""
    longest = int(reuse.blocks.max())
    if capacity_blocks < longest:
        raise ConfigError(
            f"a cache of {capacity_blocks:,} blocks is smaller than the longest prompt, "
            f"{longest:,} blocks of {reuse.grain_tokens} tokens."
        )
    policy = make_policy(name, numbered if name == OFFLINE else None)
    paths = map(numbered.path, range(len(numbered)))
    hits = PrefixTree(policy).serve(paths, capacity_blocks)
    found = np.array(hits, np.int64)
    tokens = np.minimum(found * reuse.grain_tokens, reuse.tokens)
    lost = int((reuse.found_tokens(None) - tokens).sum())
    return Outcome(
        name,
        tokens,
        table.total_input_tokens,
        {"evicted_block": lost},
        found_tokens=int(tokens.sum()),
        found_blocks=int(found.sum()),
    )
