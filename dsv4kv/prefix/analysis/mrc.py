"""The hit rate of a trace by capacity, what V4's rules make of it, and what engines would."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.prefix.analysis.apply import apply_strategy
from dsv4kv.prefix.analysis.costs import PrefixCosts, prefix_costs
from dsv4kv.prefix.analysis.curve import pick_capacities, trace_curve
from dsv4kv.prefix.analysis.outcome import Outcome
from dsv4kv.prefix.analysis.paths import PathTable
from dsv4kv.prefix.analysis.reuse import Reuse, find_reuse
from dsv4kv.prefix.analysis.rule_pool import DEFAULT_CHUNK_TOKENS, Pool
from dsv4kv.prefix.analysis.rules import find_rule, run_rule
from dsv4kv.prefix.analysis.sample import SampledHits
from dsv4kv.prefix.analysis.sampling import Sampling, Simulation
from dsv4kv.prefix.analysis.strategy import Strategy, parse_strategy


@dataclass(frozen=True)
class Question:
    """What is asked about a trace.

    Attributes:
        model: Whose cache it is.
        block_tokens: Tokens of a block; None takes the trace's own.
        capacities_tokens: Capacities in tokens; empty for ``points`` of them.
        points: How many capacities are picked.
        strategies: Names of strategies for windows and states.
        rules: Names of engines' rules.
        policies: Names of eviction policies.
        chunk_tokens: Tokens of a prompt computed at once, where a rule asks.
        snap: Keep checkpoints out of partial last blocks.
        sample: Share of the prompt families that policies are simulated on, 1 for the whole
            trace; None samples where the whole would take long.
    """

    model: DSV4Config
    block_tokens: int | None = None
    capacities_tokens: tuple[int, ...] = ()
    points: int = 9
    strategies: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    snap: bool = True
    sample: float | None = None


@dataclass(frozen=True)
class Point:
    """One capacity.

    Attributes:
        capacity_tokens: In tokens of context; None for a cache without bound.
        capacity_blocks: In whole blocks.
        capacity_bytes: In bytes of the model's compressed cache.
        block_hits: Share of block references found.
        token_hits: Share of prompt tokens found.
        strategies: What the strategies make of it.
        rules: What the rules make of a pool of this size.
        policies: What other policies make of it, simulated on the whole trace.
        estimates: The same from a sample, where one was drawn.
    """

    capacity_tokens: int | None
    capacity_blocks: int | None
    capacity_bytes: int | None
    block_hits: float
    token_hits: float
    strategies: tuple[Outcome, ...]
    rules: tuple[Outcome, ...]
    policies: tuple[Outcome, ...] = ()
    estimates: tuple[SampledHits, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A trace measured.

    Attributes:
        requests: Its requests.
        input_tokens: Tokens of all prompts.
        references: Blocks of all prompts.
        block_tokens: Tokens of a block.
        trace_block_tokens: Tokens of an id of the trace.
        costs: What its prefixes weigh.
        points: By capacity, the unbounded cache last.
        enough_tokens: The capacity at which 90 % of all that can be hit is.
        sampling: What policies were simulated on.
    """

    requests: int
    input_tokens: int
    references: int
    block_tokens: int
    trace_block_tokens: int
    costs: PrefixCosts
    points: tuple[Point, ...]
    enough_tokens: int | None
    sampling: Sampling


def measure_trace(table: PathTable, question: Question) -> Answer:
    """Answer a question about a trace.

    Raises:
        ConfigError: Names that there are not, blocks that do not fit, capacities too small.
    """
    grain = question.block_tokens or table.block_tokens
    reuse = find_reuse(table, grain)
    costs = prefix_costs(question.model)
    strategies = [
        parse_strategy(name, window_tokens=costs.window_tokens, layers=costs.layers)
        for name in question.strategies
    ]
    blocks = [_whole_blocks(tokens, reuse) for tokens in question.capacities_tokens]
    capacities: list[int | None] = [*(blocks or pick_capacities(reuse, question.points)), None]
    simulation = Simulation(
        table, reuse, question.policies, question.sample, [c for c in capacities if c is not None]
    )
    enough = trace_curve(reuse).capacity_for(0.9)
    return Answer(
        requests=len(table),
        input_tokens=table.total_input_tokens,
        references=int(reuse.blocks.sum()),
        block_tokens=grain,
        trace_block_tokens=table.block_tokens,
        costs=costs,
        points=tuple(
            replace(
                _measure(table, reuse, c, question, strategies, costs),
                policies=simulation.outcomes(c),
                estimates=simulation.estimates(c),
            )
            for c in capacities
        ),
        enough_tokens=None if enough is None else enough * grain,
        sampling=simulation.sampling,
    )


def _whole_blocks(tokens: int, reuse: Reuse) -> int:
    blocks, longest = tokens // reuse.grain_tokens, int(reuse.blocks.max())
    if blocks < longest:
        raise ConfigError(
            f"a capacity of {tokens:,} tokens is smaller than the longest prompt, "
            f"{int(reuse.tokens.max()):,} tokens in {longest:,} blocks of {reuse.grain_tokens}: "
            "that request could not run."
        )
    return blocks


def _measure(
    table: PathTable,
    reuse: Reuse,
    blocks: int | None,
    question: Question,
    strategies: Sequence[Strategy],
    costs: PrefixCosts,
) -> Point:
    tokens = None if blocks is None else blocks * reuse.grain_tokens
    return Point(
        capacity_tokens=tokens,
        capacity_blocks=blocks,
        capacity_bytes=None if tokens is None else int(tokens * costs.token_bytes),
        block_hits=int(reuse.found_blocks(blocks).sum()) / int(reuse.blocks.sum()),
        token_hits=int(reuse.found_tokens(blocks).sum()) / table.total_input_tokens,
        strategies=tuple(
            apply_strategy(strategy, table, reuse, blocks, snap=question.snap)
            for strategy in strategies
        ),
        rules=_rules(table, tokens, question),
    )


def _rules(table: PathTable, tokens: int | None, question: Question) -> tuple[Outcome, ...]:
    """Rules at one capacity, each with the blocks of its engine unless others are asked for."""
    if tokens is None:
        return ()
    outcomes = []
    for name in question.rules:
        grain = question.block_tokens or default_block(name, table)
        pool = Pool(table, tokens, grain, question.model, question.chunk_tokens)
        outcomes.append(run_rule(name, pool))
    return tuple(outcomes)


def default_block(rule: str, table: PathTable) -> int:
    """Blocks an engine takes for DeepSeek-V4: 256 tokens; for the ideal rule the trace's own."""
    return find_rule(rule).block_tokens or table.block_tokens
