"""What tiers keep of prompts by a rule: bytes, objects, and the places to resume at."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from dsv4kv.config.replay import ReplayConfig, TierSection
from dsv4kv.core.served import Served
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.formats import PLACES, Site, stored_formats
from dsv4kv.engines.host import HostPool, Offloaded
from dsv4kv.engines.names import find_engine, find_rule
from dsv4kv.engines.rule import NOWHERE, Retention
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import Kept, build_schema, bytes_per_token, choose_formats, families_in
from dsv4kv.replay.memory import MemoryPlan, arch_of, describe_deployment
from dsv4kv.units import format_bytes


@dataclass(frozen=True)
class Stored:
    """What tiers keep."""

    objects: Offloaded  # of a block of context, and of a place to resume at
    useful_bytes: Fraction  # of a token: entries and keys, without padding
    kept: Retention  # where an engine leaves tails; the toolkit's own cache says so itself
    block_tokens: int  # tokens of its blocks

    def places(self, served: Served, before: int, after: int) -> list[int]:
        """Blocks behind which tails stay; SGLang's are ends of chunks and of context found."""
        size, places = self.block_tokens, {served.found, after}
        if not self.kept.chunks:
            places = {place // size for place in self.kept.places(served.prompt_tokens, size)}
        return sorted(place for place in places if before < place <= after)


def find_stored(config: ReplayConfig, memory: MemoryPlan, shared_tokens: int) -> Stored:
    """What is kept by ``prefix.rule``, in shared blocks of ``shared_tokens``."""
    name = config.prefix.rule
    rule = find_rule(name)
    if config.tiers.retention_tokens is not None and "retention" not in rule.flags:
        raise ConfigError(f"tiers.retention_tokens goes with vllm-v4 rules, not with {name}.")
    chunk_tokens = config.tiers.chunk_tokens if config.tiers.layout == "lmcache" else None
    if not rule.engine:
        if chunk_tokens is not None:
            raise ConfigError(f"tiers.layout lmcache goes with rules of vLLM, not with {name}.")
        objects = _own_objects(memory, shared_tokens)
        useful_bytes = bytes_per_token(memory.schemas)
        return Stored(objects, useful_bytes, NOWHERE, memory.block_tokens)
    engine = find_engine(rule.engine)
    deployment = _deployment(config, memory, engine.name)
    objects = engine.objects(deployment, config.tiers.retention_tokens, chunk_tokens)
    kept = NOWHERE if chunk_tokens is not None else rule.retention
    if chunk_tokens is None and not rule.windows:
        objects = replace(objects, tail=())
    elif not kept.chunks and config.tiers.retention_tokens is not None:
        kept = replace(kept, period_tokens=config.tiers.retention_tokens, ends=True)
    schemas = [
        build_schema(memory.model, each.layer, formats=deployment.formats)
        for each in memory.schemas
    ]
    return Stored(objects, bytes_per_token(schemas), kept, memory.block_tokens)


def _deployment(config: ReplayConfig, memory: MemoryPlan, engine: str) -> Deployment:
    site = Site(engine, memory.model, arch_of(config.cost))
    formats = config.model.formats
    asked = {place: getattr(formats, place) for place in PLACES}
    names = (name for name, _ in stored_formats(site, asked).values())
    held = describe_deployment(config, memory.model, memory.schemas)
    return replace(held, formats=choose_formats(memory.model, *names), arch=site.arch)


def _own_objects(memory: MemoryPlan, shared_tokens: int) -> Offloaded:
    """Families of this toolkit's cache; what ``full`` keeps with a block goes with it."""
    blocks = shared_tokens // memory.block_tokens
    families = families_in(memory.schemas)
    pages = [
        HostPool(each.name, blocks, each.object_bytes)
        for each in families
        if each.kept is Kept.PAGES
    ]
    ends = (
        HostPool(each.name, 1, each.object_bytes) for each in families if each.kept is Kept.WINDOW
    )
    match memory.strategy.kind:
        case "full" if memory.beside_bytes:
            tails = HostPool("windows and states", blocks, memory.beside_bytes)
            return Offloaded((*pages, tails))
        case "full" | "zero":
            return Offloaded(tuple(pages))
        case _:
            return Offloaded(tuple(pages), tuple(ends))


class Sizes(NamedTuple):
    """Bytes of a tier for context, and for tails where these have a pool of their own."""

    context_bytes: int
    tail_bytes: int | None


def size_tier(name: str, config: ReplayConfig, memory: MemoryPlan, stored: Stored) -> Sizes:
    """How a tier's memory is divided; raises ``ConfigError``."""
    tier: TierSection = getattr(config.tiers, name)
    objects, policy = stored.objects, find_rule(config.prefix.rule).policy
    sizes = Sizes(tier.capacity_bytes or 0, None)
    if tier.ratio is not None:
        blocks = int(memory.num_blocks * tier.ratio) // objects.context[0].pages
        sizes = Sizes(blocks * objects.context_bytes, None)
        if policy.index != "hashed" and objects.tail:  # vLLM's blocks hold either
            windows = memory.num_blocks
            if memory.num_checkpoints is not None:
                windows = memory.num_checkpoints
            tails = int(windows * tier.ratio) * objects.tail_bytes
            sizes = Sizes(sizes.context_bytes, tails)
    if name == "host" and policy.host_by_ratio and tier.ratio is None:
        raise ConfigError(
            "tiers.host.capacity_bytes: SGLang sizes host memory only by --hicache-ratio for "
            "these models: give tiers.host.ratio."
        )
    if tier.ratio is not None and objects.blocks > 1:
        raise ConfigError(
            f"tiers.{name}.ratio: LMCache's memory is given in bytes: give "
            f"tiers.{name}.capacity_bytes."
        )
    if sizes.context_bytes < objects.context_bytes:
        raise ConfigError(
            f"tiers.{name} has {format_bytes(sizes.context_bytes)}, and one object of context "
            f"takes {format_bytes(objects.context_bytes)}: give it more."
        )
    return sizes
