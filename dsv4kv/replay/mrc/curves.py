"""The hit rate of a trace by capacity, what V4's rules make of it, and what engines would."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import methodcaller

import numpy as np

from dsv4kv.core.paths import NumberedPaths
from dsv4kv.core.strategy import Strategy
from dsv4kv.engines.names import find_rule
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.processes import map_parallel
from dsv4kv.replay.mrc import strategies as ss
from dsv4kv.replay.rules import DEFAULT_CHUNK_TOKENS, Outcome, Pool, find_drafts, run_rule
from dsv4kv.traces.paths import Ints, PathTable, Reuse, find_reuse, number_prompts


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

    model: DSV4Config  # whose cache it is
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
    token_error: float = 0.0  # half of the 95 % interval of ``token_hits``; 0 where exact

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of ``token_hits``, without shares that cannot be."""
        return max(0.0, self.token_hits - self.token_error), self.token_hits + self.token_error


@dataclass(frozen=True)
class Answer:
    """The measurements of a trace."""

    requests: int
    input_tokens: int
    references: int  # blocks of all prompts
    block_tokens: int
    trace_block_tokens: int  # tokens of an id of the trace
    costs: ss.PrefixCosts
    points: tuple[Point, ...]  # by capacity, the unbounded cache last
    enough_tokens: int | None  # the capacity that reaches 90 % of all hits
    arch: str | None = None  # GPU for which V4.1's blocks are sized; None where none was named
    # of all blocks, those that the curve was measured on; 1 where it is exact
    kept_share: float = 1.0
    kept_references: int = 0  # references to them


def measure_trace(
    table: PathTable,
    question: Question,
    watch: Callable[[int, int], object] | None = None,
    jobs: int = 1,
) -> Answer:
    """Answer a question; ``watch`` gets steps done and all, ``jobs`` are processes for rules."""
    grain = question.block_tokens or table.block_tokens
    reuse = find_reuse(table, grain)
    costs = ss.prefix_costs(question.model)
    strategies = [
        ss.parse_strategy(name, window_tokens=costs.window_tokens, layers=costs.layers)
        for name in question.strategies
    ]
    sizes: list[int | None] = [*question.capacities_tokens]
    if not sizes:
        sizes = [blocks * grain for blocks in pick_capacities(reuse, question.points)]
    parts = _part_by_size(table, reuse, [*sizes, None])
    enough = capacity_for(reuse, 0.9)
    steps = len(parts) + len(sizes) * len(question.rules) * len(question.speculations)
    numbers = iter(range(1, steps + 1))

    def on_step() -> None:
        done = next(numbers)
        if watch:
            watch(done, steps)

    bounded = [size for size in sizes if size is not None]
    points = list(product(bounded, question.rules, question.speculations))
    run, found = partial(_run_rule, table, question), dict[tuple[int, str, str], Outcome]()
    one_by_one = ((point, run(point)) for point in points)
    for point, outcome in map_parallel(run, points, jobs) if jobs > 1 else one_by_one:
        found[point] = outcome
        on_step()
    answered = []
    for tokens, part in parts:
        here = product([] if tokens is None else [tokens], question.rules, question.speculations)
        rules = [found[point] for point in here]
        answered.append(_measure(part, tokens, question, strategies, costs, rules))
        on_step()
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
    """The requests of a trace, ``whole`` with ``references`` blocks, that can run.

    ``requests`` are their places, int64; ``table``, ``reuse`` and ``numbered`` are theirs alone.
    """

    whole: PathTable
    references: int
    requests: Ints
    table: PathTable
    reuse: Reuse
    numbered: NumberedPaths


def _part_by_size(
    table: PathTable, reuse: Reuse, sizes: Sequence[int | None]
) -> list[tuple[int | None, _Part]]:
    """Every capacity in tokens, None for no bound, with the requests that can run in it."""
    grain, references = reuse.grain_tokens, int(reuse.blocks.sum())
    blocks = [None if size is None else size // grain for size in sizes]
    counts = [len(table) if b is None else int((reuse.blocks <= b).sum()) for b in blocks]
    parts = {}
    for count in sorted(set(counts)):
        if not count:
            least = min(size for size in sizes if size is not None)
            raise ConfigError(
                f"a capacity of {least:,} tokens is smaller than every prompt, "
                f"of {int(reuse.tokens.min()):,} tokens and more: no request could run."
            )
        requests, some, its = np.arange(count), table, reuse
        if count < len(table):
            requests = np.sort(np.argsort(reuse.blocks, kind="stable")[:count])
            some = table.select(requests)
            its = find_reuse(some, grain)
        numbered = number_prompts(some, grain, whole_blocks=False)
        parts[count] = _Part(table, references, requests, some, its, numbered)
    return [(size, parts[count]) for size, count in zip(sizes, counts, strict=True)]


def _measure(
    part: _Part,
    tokens: int | None,
    question: Question,
    strategies: Sequence[Strategy],
    costs: ss.PrefixCosts,
    rules: Sequence[Outcome],
) -> Point:
    reuse, prompts = part.reuse, part.whole.input_tokens
    blocks = None if tokens is None else tokens // reuse.grain_tokens
    among = methodcaller("among", prompts, part.requests)
    return Point(
        capacity_tokens=tokens,
        capacity_blocks=blocks,
        capacity_bytes=None if tokens is None else int(tokens * costs.token_bytes),
        rejected=len(part.whole) - len(part.table),
        block_hits=int(reuse.found_blocks(blocks).sum()) / part.references,
        token_hits=int(reuse.found_tokens(blocks).sum()) / part.whole.total_input_tokens,
        strategies=tuple(
            among(ss.apply_strategy(s, part.table, reuse, blocks)) for s in strategies
        ),
        rules=tuple(rules),
        policies=tuple(
            among(ss.apply_policy(name, part.table, reuse, part.numbered, blocks))
            for name in question.policies
            if blocks is not None
        ),
    )


def _run_rule(table: PathTable, question: Question, point: tuple[int, str, str]) -> Outcome:
    """A rule at a capacity in tokens, with a way to draft; in its own blocks, or the trace's."""
    tokens, name, drafts = point
    rule, arch = find_rule(name), question.arch
    grain = question.block_tokens or rule.block_tokens_on(arch) or table.block_tokens
    how = find_drafts(name, rule, drafts)
    pool = Pool(table, tokens, grain, question.model, question.chunk_tokens, how, arch)
    return replace(run_rule(name, pool), speculation=drafts)
