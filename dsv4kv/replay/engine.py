"""An engine's rule in place of the toolkit's own: its cache, and prompts as numbers of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.config.replay import ReplayConfig
from dsv4kv.prefix.analysis.engine_cache import EngineCache
from dsv4kv.prefix.analysis.nodes import number_paths
from dsv4kv.prefix.analysis.reuse import find_reuse
from dsv4kv.prefix.analysis.rule_pool import Pool, draft_needs
from dsv4kv.prefix.analysis.rules import find_drafts, find_rule
from dsv4kv.prefix.run import Ids
from dsv4kv.replay.engine_prompts import EnginePrompts
from dsv4kv.replay.memory import MemoryPlan
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.collect import collect_paths


@dataclass(frozen=True)
class Engine:
    """A replay by an engine's rule.

    Attributes:
        ledger: The engine's cache: the blocks, too.
        prompts: What requests find there.
        paths: The blocks of every prompt of the trace that can be shared, as numbers.
    """

    ledger: EngineCache
    prompts: EnginePrompts
    paths: Sequence[Ids]

    def keys(self, number: int, _: Request) -> Ids:
        """The whole blocks of a request's prompt."""
        return self.paths[number]


def build_engine(
    config: ReplayConfig, memory: MemoryPlan, requests: Sequence[Request]
) -> Engine | None:
    """The cache of ``prefix.rule``; None for the toolkit's own, or where nothing is reused.

    Raises:
        ConfigError: Blocks that do not fit the trace's or the rule.
    """
    rule = find_rule(config.prefix.rule)
    if rule.open is None or not config.prefix.reuse:
        return None
    if not any(request.hash_block_tokens for request in requests):
        return None
    size = memory.block_tokens
    table = collect_paths(requests)
    drafts = find_drafts(config.prefix.rule, config.prefix.speculation)
    reuse = find_reuse(table, size, whole_blocks=True, key_tokens=drafts.key_tokens)
    chunk = config.scheduler.step_tokens
    pool = Pool(table, memory.num_blocks * size, size, memory.model, chunk, drafts)
    cache, needs = rule.open(pool), draft_needs(pool, windows=rule.windows)
    prompts = EnginePrompts(cache, size, windows=rule.windows, draft_needs=needs)
    return Engine(cache, prompts, number_paths(reuse).paths)
