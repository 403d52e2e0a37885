"""The hit rate of a trace by capacity, what V4's rules make of it, and what engines would.

Strategies for windows and states are over a cache of blocks evicted by age.  A checkpoint belongs
to the block it ends at, and goes when the block does; one that is computed again has none.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import islice, product
from math import lcm
from operator import methodcaller

import numpy as np

from dsv4kv.choices import STRATEGIES, unknown
from dsv4kv.core.paths import NumberedPaths
from dsv4kv.core.policies import OFFLINE, make_policy
from dsv4kv.core.prompts import Strategy
from dsv4kv.core.tree import PrefixTree
from dsv4kv.engines.names import find_rule
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config, build_schedule
from dsv4kv.model.plan import at_whole_block, build_schema, bytes_per_token
from dsv4kv.processes import map_parallel
from dsv4kv.replay.rules import DEFAULT_CHUNK_TOKENS, Outcome, Pool, find_drafts, run_rule
from dsv4kv.traces.paths import Ints, PathTable, Reuse, find_reuse, number_prompts


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
    elif text in ("full", "ends", "ends+junctions"):
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
    columns = reuse.owner, reuse.begin * grain, reuse.end * grain
    stretches = zip(*(column.tolist() for column in columns), strict=True)
    counts = np.bincount(reuse.request, minlength=len(whole)).tolist()
    resumed, there_of, gone_of = list[int](), list[list[int]](), list[list[int]]()
    forgotten, written, nothing = 0, 0, list[int]()
    for request, (found, end) in enumerate(zip(whole.tolist(), ends.tolist(), strict=True)):
        there, gone = list[int](), list[int]()
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
        gone_of.append(gone or nothing)
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
    paths: Iterable[list[int]] = map(numbered.path, range(len(numbered)))
    if name == OFFLINE:
        paths = list(paths)
    policy = make_policy(name, paths if isinstance(paths, list) else None)
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


def hit_curve(reuse: Reuse) -> tuple[Ints, Ints]:
    """Capacities in blocks, rising from 0, and int64: blocks that each finds.

    Between two of them the blocks that are found grow in a straight line: a stretch is found from
    ``above`` on, block by block, until its end.
    """
    length = reuse.end - reuse.begin
    places = np.concatenate([reuse.above, reuse.above + length])
    slopes = np.concatenate([np.ones_like(length), -np.ones_like(length)])
    corners, inverse = np.unique(np.concatenate([[0], places]), return_inverse=True)
    slope = np.bincount(inverse[1:], slopes, len(corners)).cumsum().astype(np.int64)
    return corners, np.concatenate([[0], np.cumsum(slope[:-1] * np.diff(corners))])


def capacity_for(reuse: Reuse, share: float) -> int | None:
    """The smallest capacity in blocks that reaches a share of the most that can be hit."""
    corners, hits = hit_curve(reuse)
    wanted = share * int(hits[-1])
    if not wanted:
        return None
    at = int(np.searchsorted(hits, wanted))
    rise, run = hits[at] - hits[at - 1], corners[at] - corners[at - 1]
    return int(corners[at - 1] + np.ceil((wanted - hits[at - 1]) * run / rise))


def pick_capacities(reuse: Reuse, points: int) -> Sequence[int]:
    """Capacities worth showing, in blocks: from the longest prompt to just below all there is."""
    low = max(1, int(reuse.blocks.max()))
    high = int((reuse.above + reuse.end - reuse.begin).max(initial=low))
    return [int(c) for c in np.unique(np.geomspace(low, max(low, high), points + 1).round())][:-1]


@dataclass(frozen=True)
class Question:
    """What is measured on a trace: capacities, and names of what is compared at each."""

    model: DSV4Config
    block_tokens: int | None = None  # tokens of a block; None takes the trace's own
    capacities_tokens: tuple[int, ...] = ()  # capacities in tokens; empty for ``points`` of them
    points: int = 9
    strategies: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    speculations: tuple[str, ...] = ("none",)
    policies: tuple[str, ...] = ()
    # tokens of a prompt computed in one step, for rules that depend on it
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    # GPU for which V4.1's blocks are sized; None takes it as a datacenter Blackwell
    arch: str | None = None


@dataclass(frozen=True)
class Point:
    """One capacity."""

    capacity_tokens: int | None  # in tokens of context; None for unlimited memory
    capacity_blocks: int | None  # in whole blocks
    capacity_bytes: int | None  # in bytes of the model's compressed cache
    rejected: int  # requests that are longer: they can never run, hit nothing and leave nothing
    block_hits: float  # share of block references found
    token_hits: float  # share of prompt tokens found
    strategies: tuple[Outcome, ...] = ()
    rules: tuple[Outcome, ...] = ()
    policies: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The measurements of a trace."""

    requests: int
    input_tokens: int
    references: int  # blocks of all prompts
    block_tokens: int
    trace_block_tokens: int  # tokens of an id of the trace
    costs: PrefixCosts
    points: tuple[Point, ...]  # by capacity, the unbounded cache last
    enough_tokens: int | None  # the capacity that reaches 90 % of all hits
    arch: str | None = None  # GPU for which V4.1's blocks are sized; None where none was named


def measure_trace(
    table: PathTable,
    question: Question,
    watch: Callable[[int, int], object] | None = None,
    jobs: int = 1,
) -> Answer:
    """Answer a question; ``watch`` gets steps done and all, ``jobs`` are processes for rules."""
    grain = question.block_tokens or table.block_tokens
    reuse = find_reuse(table, grain)
    costs = prefix_costs(question.model)
    strategies = [
        parse_strategy(name, window_tokens=costs.window_tokens, layers=costs.layers)
        for name in question.strategies
    ]
    bounded = dict.fromkeys(
        question.capacities_tokens
        or [blocks * grain for blocks in pick_capacities(reuse, question.points)]
    )
    # by capacity in tokens, None for no bound, how many requests can run in it
    counts: dict[int | None, int] = {
        size: int((reuse.blocks <= size // grain).sum()) for size in bounded
    }
    if not all(counts.values()):
        raise ConfigError(
            f"a capacity of {min(bounded):,} tokens is smaller than every prompt, "
            f"of {int(reuse.tokens.min()):,} tokens and more: no request could run."
        )
    counts[None] = len(table)
    parts = {count: _part(table, reuse, count) for count in set(counts.values())}
    enough = capacity_for(reuse, 0.9)
    points = list(product(bounded, question.rules, question.speculations))
    steps = len(counts) + len(points)
    numbers, watch = iter(range(1, steps + 1)), watch or (lambda done, steps: None)
    run, found = partial(_run_rule, table, question), dict[tuple[int, str, str], Outcome]()
    one_by_one = ((point, run(point)) for point in points)
    for point, outcome in map_parallel(run, points, jobs) if jobs > 1 else one_by_one:
        found[point] = outcome
        watch(next(numbers), steps)
    answered = []
    for tokens, count in counts.items():
        rules = tuple(found[point] for point in points if point[0] == tokens)
        answered.append(_measure(table, reuse, parts[count], tokens, question, strategies, rules))
        watch(next(numbers), steps)
    return Answer(
        requests=len(table),
        input_tokens=table.total_input_tokens,
        references=int(reuse.blocks.sum()),
        block_tokens=grain,
        trace_block_tokens=table.block_tokens,
        costs=costs,
        points=tuple(answered),
        enough_tokens=None if enough is None else enough * grain,
        arch=question.arch,
    )


@dataclass(frozen=True)
class _Part:
    """The requests of a trace that can run: their places, int64, and what is theirs alone."""

    requests: Ints
    table: PathTable
    reuse: Reuse

    @cached_property
    def numbered(self) -> NumberedPaths:
        return number_prompts(self.table, self.reuse.grain_tokens, whole_blocks=False)


def _part(table: PathTable, reuse: Reuse, count: int) -> _Part:
    if count == len(table):
        return _Part(np.arange(count), table, reuse)
    requests = np.sort(np.argsort(reuse.blocks, kind="stable")[:count])
    some = table.select(requests)
    return _Part(requests, some, find_reuse(some, reuse.grain_tokens))


def _measure(
    table: PathTable,
    whole: Reuse,
    part: _Part,
    tokens: int | None,
    question: Question,
    strategies: Sequence[Strategy],
    rules: tuple[Outcome, ...],
) -> Point:
    reuse, costs = part.reuse, prefix_costs(question.model)
    blocks = None if tokens is None else tokens // reuse.grain_tokens
    outcomes = [apply_strategy(each, part.table, reuse, blocks) for each in strategies]
    among = methodcaller("among", table.input_tokens, part.requests)
    names = () if blocks is None else question.policies
    policies = [apply_policy(n, part.table, reuse, part.numbered, blocks or 0) for n in names]
    return Point(
        capacity_tokens=tokens,
        capacity_blocks=blocks,
        capacity_bytes=None if tokens is None else int(tokens * costs.token_bytes),
        rejected=len(table) - len(part.table),
        block_hits=int(reuse.found_blocks(blocks).sum()) / int(whole.blocks.sum()),
        token_hits=int(reuse.found_tokens(blocks).sum()) / table.total_input_tokens,
        strategies=tuple(map(among, outcomes)),
        rules=rules,
        policies=tuple(map(among, policies)),
    )


def _run_rule(table: PathTable, question: Question, point: tuple[int, str, str]) -> Outcome:
    """A rule at a capacity in tokens, with a way to draft; in its own blocks, or the trace's."""
    tokens, name, drafts = point
    rule, arch = find_rule(name), question.arch
    grain = question.block_tokens or rule.block_tokens_on(arch) or table.block_tokens
    how = find_drafts(name, rule, drafts)
    pool = Pool(table, tokens, grain, question.model, question.chunk_tokens, how, arch)
    return replace(run_rule(name, pool), speculation=drafts)
