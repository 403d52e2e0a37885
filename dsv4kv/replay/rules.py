"""Prefix caches of engines, opened by a rule, and traces served by them.

A trace is served request by request, each leaving only its prompt behind; side by side the same
caches are driven by a scheduler.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dsv4kv.choices import choose, listed
from dsv4kv.core import hashed
from dsv4kv.core.cache import EngineCache
from dsv4kv.core.hashed import HashedCache
from dsv4kv.core.outcome import ReuseTally
from dsv4kv.core.paths import NumberedPaths
from dsv4kv.core.radix import Pages, SglangCache, SglangWindowCache
from dsv4kv.core.served import Served
from dsv4kv.core.slots import SlotCache
from dsv4kv.engines import rule as rl
from dsv4kv.engines.contract import Deployment, SlotEngine
from dsv4kv.engines.formats import Site, stored_formats
from dsv4kv.engines.names import RULES, find_engine, find_rule
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import choose_formats
from dsv4kv.traces.paths import Ints, PathTable, find_reuse, number_prompts
from dsv4kv.traces.request import IdRuns, list_runs

DEFAULT_CHUNK_TOKENS = 8192  # vLLM's ``max_num_batched_tokens`` on large GPUs
UBATCH = 512  # llama-server's tokens of a step, unless given
WINDOW_RATIO = 10  # SGLang's ``swa_full_tokens_ratio`` is 0.1


@dataclass(frozen=True)
class Pool:
    """The cache that a rule is given, and the trace."""

    table: PathTable
    tokens: int
    block_tokens: int
    model: DSV4Config
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS  # tokens of a prompt computed in one step
    speculation: rl.Speculation = rl.SPECULATIONS["none"]
    # what the GPU's kernels are compiled for, which decides V4.1's blocks in vLLM: ``sm_90``; None
    # is a datacenter Blackwell
    arch: str | None = None
    windows: int | None = None  # pages of SGLang's pool of windows; None for a tenth of the pages
    # a running request holds all windows of its prompt's last chunk (SGLang)
    holds_chunks: bool = False
    tokens_per_step: float = 1.0  # tokens of a request in a decode step, on average
    numbered: NumberedPaths | None = None  # the prompts, where they are known as block numbers
    step_tokens: int = 1  # most tokens of a request in a decode step
    slots: int = 0  # of llama.cpp's requests, which are not unified; 0 where they are not given

    @property
    def blocks(self) -> int:
        return self.tokens // self.block_tokens

    @property
    def numbers(self) -> NumberedPaths:
        known, size = self.numbered, self.block_tokens
        return known or number_prompts(self.table, size, self.speculation.key_tokens)


def find_drafts(name: str, rule: rl.Variant, speculation: str) -> rl.Speculation:
    """How a rule drafts; raises ``ConfigError`` where its hits are not known."""
    choose(rl.SPECULATIONS, speculation, "a speculation")
    if speculation not in rule.drafts:
        raise ConfigError(
            f"what {speculation} makes of hits is not known for the rule {name}: "
            f"take {listed(rule.drafts)}."
        )
    return rl.SPECULATIONS[speculation]


def check_model(name: str, rule: rl.Variant, model: DSV4Config) -> None:
    """Refuse a rule that is another generation's; raises ``ConfigError``."""
    if model.kind not in rule.kinds:
        fitting = listed(each for each, known in RULES.items() if model.kind in known.kinds)
        raise ConfigError(f"the rule {name} is not one of {model.name}: take {fitting}.")


def layout_of(variant: rl.Variant, deployment: Deployment) -> rl.Layout:
    """Blocks of a variant; for V4.1 in the formats that its engine stores on the GPU."""
    engine, model = find_engine(variant.engine), deployment.model
    if model.kind == "v41":
        stored = stored_formats(Site(engine.name, model, deployment.arch), {})
        formats = choose_formats(model, *(name for name, _ in stored.values()))
        deployment = replace(deployment, formats=formats)
    return engine.rule(deployment, variant.flags).layout


def rule_of(variant: rl.Variant, pool: Pool) -> rl.Rule:
    """The rule of a variant for a pool: context alone where it knows nothing of windows."""
    model, size = pool.model, pool.block_tokens
    layout = rl.Layout((rl.Group("context", size),), 0, model.window_tokens)
    if variant.groups:
        deployment = Deployment(
            model,
            choose_formats(model, indexer="fp8"),
            max_context_tokens=model.max_context_tokens,
            in_flight_tokens=pool.chunk_tokens,
            block_tokens=size,
            arch=pool.arch,
        )
        layout = layout_of(variant, deployment)
    return rl.Rule(layout, variant.retention, variant.policy)


def open_cache(variant: rl.Variant, pool: Pool) -> EngineCache:
    rule = rule_of(variant, pool)
    match variant.policy.index:
        case "slots":
            return _open_slots(variant, pool)
        case "hashed":
            return _open_hashed(rule, pool)
    return _open_radix(rule, pool, windows=variant.groups)


def _open_hashed(rule: rl.Rule, pool: Pool) -> HashedCache:
    size, drafts, period = pool.block_tokens, pool.speculation, rule.retention.period_tokens
    if (period or 0) % size:
        raise ConfigError(f"a retention of {period} tokens must be whole blocks of {size} tokens.")
    groups = cut_groups(rule, pool)
    parts = [part for group in groups for part in group.parts if part.followed]
    context = followed = pool.numbers
    if parts:
        ends = max(max(0, part.end_tokens) for part in parts)
        followed = number_prompts(pool.table, size, ends)

    def path_of(request: int) -> tuple[list[int], list[int]]:
        return context.path(request), followed.path(request)

    return HashedCache(
        pool.blocks,
        size,
        groups,
        path_of,
        max(context.count, followed.count),
        retention=period,
        chunk_tokens=pool.chunk_tokens,
        drops=drafts.drops,
        replayed_tokens=rule.replayed_tokens,
        step_tokens=pool.step_tokens,
        hit_blocks=rule.policy.hit_blocks,
    )


def cut_groups(rule: rl.Rule, pool: Pool) -> list[hashed.Group]:
    drafts = pool.speculation
    groups = hashed.cut_groups(rule.layout.tables, drafts.key_tokens, drafts.drops)
    longest = max(
        (g.needed * g.block_tokens + max(0, g.parts[-1].end_tokens) for g in groups if g.parts),
        default=0,
    )
    if drafts.drops and longest > pool.block_tokens:
        raise ConfigError(
            f"what drafts make of hits is not known for blocks of {pool.block_tokens} tokens: a "
            f"window and the block after it are {longest}. vLLM takes {rl.ENGINE_BLOCK_TOKENS}."
        )
    return groups


def _open_slots(variant: rl.Variant, pool: Pool) -> SlotCache:
    engine, model, size = find_engine(variant.engine), pool.model, pool.block_tokens
    assert isinstance(engine, SlotEngine)
    policy = variant.policy
    ubatch = pool.chunk_tokens if pool.slots else min(pool.chunk_tokens, UBATCH)
    deployment = Deployment(model, choose_formats(model), model.max_context_tokens, ubatch)
    return SlotCache(
        pool.blocks,
        size,
        pool.slots or policy.slots,
        pool.numbers.path,
        ubatch=ubatch,
        unified=not pool.slots,
        checkpoints=policy.checkpoints,
        saved_bytes=partial(engine.saved_bytes, deployment),
        host_bytes=engine.host_bytes,
    )


def _open_radix(rule: rl.Rule, pool: Pool, *, windows: bool) -> SglangCache:
    size, window = pool.block_tokens, pool.model.window_tokens
    if windows and size < window:
        raise ConfigError(
            f"pages of {size} tokens do not hold a window of {window}: SGLang's are "
            f"{rl.ENGINE_BLOCK_TOKENS}."
        )
    pages = Pages(
        pool.blocks,
        size,
        pool.numbers.path,
        key_tokens=pool.speculation.key_tokens,
        uncovered_tokens=rule.uncovered_tokens,
        chunk_tokens=pool.chunk_tokens,
        replayed_tokens=rule.replayed_tokens,
        window_pages=pool.blocks // WINDOW_RATIO if pool.windows is None else pool.windows,
        window_tokens=window,
        dense=rule.retention.period_tokens is None,
        holds_chunks=pool.holds_chunks,
        tokens_per_step=pool.tokens_per_step,
    )
    return SglangWindowCache(pages) if windows else SglangCache(pages)


@dataclass(frozen=True)
class Outcome:
    """One way to reuse prefixes, on one trace, in a cache of one size."""

    name: str
    resumed_tokens: Ints  # int64[requests]: tokens of every prompt that need not be computed
    input_tokens: int
    losses: Mapping[str, int]  # the rest of what an unbounded cache would have hit, by ``REASONS``
    found_tokens: int  # tokens found in the compressed cache, all requests together
    # checkpoints of window and state written; None where there are none to count
    checkpoints: int | None = None
    checkpoint_tokens: int = 0  # window tokens written with them
    checkpoint_reads: int = 0
    found_blocks: int | None = None  # blocks found there; None where blocks are not the curve's
    # requests that can never run in a cache of this size; they hit and leave nothing
    rejected: int = 0
    speculation: str = "none"

    @property
    def label(self) -> str:
        """The name, with how drafts are made."""
        return self.name if self.speculation == "none" else f"{self.name} {self.speculation}"

    def among(self, input_tokens: Ints, requests: Ints) -> "Outcome":
        """The same among all requests, by their tokens; all but ours are rejected."""
        resumed = np.zeros(len(input_tokens), np.int64)
        resumed[requests] = self.resumed_tokens
        return replace(
            self,
            resumed_tokens=resumed,
            input_tokens=int(input_tokens.sum()),
            rejected=self.rejected + len(input_tokens) - len(requests),
        )

    @property
    def hit_tokens(self) -> int:
        return int(self.resumed_tokens.sum())

    @property
    def hit_share(self) -> float:
        return self.hit_tokens / self.input_tokens

    @property
    def hit_requests(self) -> int:
        """Requests that resumed anywhere but at their start."""
        return int((self.resumed_tokens > 0).sum())

    @property
    def written_per_new_token(self) -> float:
        """Window tokens written for every token that the compressed cache did not have."""
        return self.checkpoint_tokens / max(1, self.input_tokens - self.found_tokens)


def run_rule(name: str, pool: Pool) -> Outcome:
    """Serve a trace by a rule; requests that can never run are rejected."""
    rule, tokens = find_rule(name), pool.table.input_tokens
    check_model(name, rule, pool.model)
    fitting = np.flatnonzero(-(-tokens // pool.block_tokens) <= pool.blocks)
    if not len(fitting):
        raise ConfigError(
            f"a pool of {pool.tokens:,} tokens is smaller than every prompt, of "
            f"{int(tokens.min()):,} tokens and more: no request could run."
        )
    if len(fitting) < len(tokens):
        pool = replace(pool, table=pool.table.select(fitting))
    outcome = _serve(name, rule, pool)
    return outcome if len(fitting) == len(tokens) else outcome.among(tokens, fitting)


def _serve(name: str, variant: rl.Variant, pool: Pool) -> Outcome:
    if not variant.engine:
        reuse = find_reuse(pool.table, pool.block_tokens)
        found, once = reuse.found_tokens(pool.blocks), reuse.found_tokens(None)
        losses = {"evicted_block": int((once - found).sum())}
        return Outcome(name, found, pool.table.total_input_tokens, losses, int(found.sum()))
    if variant.policy.index == "hashed" and not variant.groups:
        pool = replace(pool, chunk_tokens=pool.block_tokens * pool.blocks)
    elif variant.policy.index == "hashed" and pool.chunk_tokens % pool.block_tokens:
        raise ConfigError(
            f"chunks of {pool.chunk_tokens} tokens of a prompt must be whole blocks of "
            f"{pool.block_tokens} tokens."
        )
    table, size, tokens = pool.table, pool.block_tokens, pool.table.input_tokens.tolist()
    numbered = number_prompts(table, size, pool.speculation.key_tokens)
    pool = replace(pool, numbered=numbered)
    cache, tally, rejected = open_cache(variant, pool), open_tally(variant, pool), 0
    resumed = np.zeros(len(table), np.int64)
    for request, hit in enumerate(map(cache.serve, range(len(table)), tokens)):
        if hit is None:
            rejected += 1
            continue
        runs = slice(*table.offsets[request : request + 2].tolist())
        ids = IdRuns(table.starts[runs], np.diff(table.ends[runs], prepend=0))
        served = Served(
            request, 0.0, tokens[request], 1, lambda one: numbered.path(one.number), ids,
            table.block_tokens,
        )  # fmt: skip
        resumed[request] = served.position = cache.computed_from(hit)
        tally.count(served, hit)
        tally.store(served, len(served.keys))
    beside = ("alignment", "last_token", "draft", "evicted_block")
    context = tally.seen_tokens - sum(tally.lost[reason] for reason in beside)
    total = table.total_input_tokens
    return Outcome(name, resumed, total, tally.lost, context, rejected=rejected)


def open_tally(variant: rl.Variant, pool: Pool) -> ReuseTally:
    """Counts of hits, and of further hits of an unbounded cache of single tokens."""
    drafts, uncovered = pool.speculation, variant.policy.uncovered
    needs = drafts.key_tokens, 0
    if drafts.drops and not variant.windows:
        needs = 0, pool.block_tokens
    elif drafts.drops:
        groups = cut_groups(rule_of(variant, pool), pool)
        needs = max(part.end_tokens for group in groups for part in group.parts), 0
    return ReuseTally(list_runs, pool.block_tokens, needs, uncovered(pool.model.window_tokens))
