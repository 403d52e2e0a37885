"""What a log's numbers came from: engine version, model, formats, blocks and tokens in flight."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from dsv4kv.engines.contract import Capacity, Deployment, Engine
from dsv4kv.engines.flags import DRAFT_LAYERS
from dsv4kv.engines.formats import Site, stored_formats
from dsv4kv.engines.logs import read as rd
from dsv4kv.engines.names import FAMILIES, engine_family, find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import choose_formats
from dsv4kv.model.presets import load_model

_ENTRY = "fp8_ds_mla"
_FORMAT = {"bf16": "bf16", "bfloat16": "bf16", "fp8_inc": "fp8"}
_FORMAT |= dict.fromkeys(("auto", "fp8", "fp8_e4m3", _ENTRY), _ENTRY)


@dataclass(frozen=True)
class Recovery:
    """One configuration that prints the numbers of a log.

    Attributes:
        available_bytes: Memory that yields the log's blocks.
        units: Blocks, or full tokens.
        flight_range: Least and most tokens in flight that give the same numbers.
        score: How well it agrees with the log's words, most important first.
        exact: Its numbers are the log's; otherwise the nearest that the rules can give.
    """

    engine: Engine
    deployment: Deployment
    available_bytes: int
    units: int
    flight_range: tuple[int, int]
    score: tuple[int, ...] = ()
    exact: bool = True

    @cached_property
    def capacity(self) -> Capacity:
        """What fits into its memory; raises ``ConfigError`` where nothing does."""
        return self.engine.capacity(self.deployment, self.available_bytes)

    @property
    def shown_tokens(self) -> int:
        """Tokens by the rules: as they are printed, or as many requests as the engine counts."""
        capacity = self.capacity
        if capacity.printed_tokens is not None:
            return capacity.printed_tokens
        return int(capacity.concurrency * self.deployment.max_context_tokens)

    @property
    def title(self) -> str:
        """Engine, model and what distinguishes it, for lists of candidates."""
        deployment = self.deployment
        drafts = deployment.draft_layers
        parts = [
            self.engine.name,
            deployment.model.name,
            f"{drafts} draft layer{'s' if drafts != 1 else ''}",
        ]
        if self.engine.unit != "slot":  # whose caches are of one type
            parts.append(f"indexer {deployment.formats.indexer.name}")
        if self.engine.unit == "block":
            parts.append(f"{deployment.in_flight_tokens:,} tokens in flight")
        if deployment.state_bytes == 2:
            parts.append("bf16 state")
        return ", ".join(parts)

    def with_flight(self, tokens: int) -> "Recovery":
        """The same with another number of tokens in flight."""
        return replace(self, deployment=replace(self.deployment, in_flight_tokens=tokens))


def recover(log: rd.StartupLog, reading: rd.Reading) -> list[Recovery]:
    """Configurations that print what the log says, the likeliest first; else the nearest."""
    rules = FAMILIES[log.family].load("log")
    first: dict[tuple[str, int], Recovery] = {}
    exact = [*rules.recover(log, reading)] if hasattr(rules, "recover") else []
    for found in exact or rules.nearest(log, reading):
        first.setdefault((found.title, found.units), found)
    return sorted(first.values(), key=lambda recovery: recovery.score, reverse=True)


def likeliest(recoveries: list[Recovery]) -> list[Recovery]:
    """Configurations that agree with the log as well as the first."""
    return [found for found in recoveries if found.score == recoveries[0].score]


def engines_of(log: rd.StartupLog) -> tuple[list[Any], bool]:
    """The version the log names, and that it does; else all versions, the newest first."""
    if log.version:
        try:
            return [find_engine(f"{log.family}:{log.version}")], True
        except ConfigError:
            pass
    return [
        find_engine(name) for name in reversed(engine_family(log.family) or [log.family])
    ], False


def possible_deployments(log: rd.StartupLog) -> Iterator[tuple[Deployment, int]]:
    """Every model, number of draft layers and format that the log does not rule out.

    With the number of the log's statements that agree: model name, drafts, indexer format. V4.1 is
    stored as the newest engine does on each GPU and backend.

    Raises:
        ConfigError: The log names a model whose cache is not DeepSeek-V4's, or a cache dtype
            that no published log of it has had.
    """
    named, rules = rd.named_model(log), FAMILIES[log.family].load("log")
    own = named if named in (rd.V41, rd.V32) else None  # stored by GPU and backend
    block, smallest = log.whole("block"), 64 if own else 128
    block = block if block and block % smallest == 0 else None  # that of another table
    dtype = _cache_dtype(log, rules.V41_DTYPES if named == rd.V41 else _FORMAT)
    ranks = (log.whole("tensor_parallel") or 1) // (log.whole("data_parallel") or 1)
    arch = log.text("arch")
    sites = rules.V41_SITES if named == rd.V41 else ((arch, None),)
    sites = [site for site in sites if site[0] == arch] or sites
    seen = set()
    for name, (arch, backend), (drafts, agree), (keys, read) in product(
        [named] if named else rd.v4_presets(), sites, _drafts(log), _indexers(log)
    ):
        model, names = load_model(name), [_FORMAT.get(dtype, dtype)] * 2 + [keys]
        if own:
            engine, asked = engine_family(log.family)[-1], "mxfp4" if keys == "mxfp4" else None
            site = Site(engine, model, arch, max(ranks, 1), backend=backend, dtype=dtype)
            try:
                names = [each for each, _ in stored_formats(site, {"indexer": asked}).values()]
            except ConfigError:  # not on this GPU
                continue
        if (key := (name, arch, *names, drafts)) not in seen:
            seen.add(key)
            deployment = Deployment(
                model,
                choose_formats(model, *names),
                max_context_tokens=log.whole("context") or model.max_context_tokens,
                in_flight_tokens=1,
                draft_layers=drafts,
                block_tokens=block,
                draft_tokens=(log.whole("draft_tokens") or 0) if drafts else 0,
                arch=arch,
            )
            yield deployment, (named is not None) + agree + read


def _cache_dtype(log: rd.StartupLog, known: Iterable[str]) -> str:
    dtype = (log.text("cache_dtype") or "auto").lower().removeprefix("torch.")
    if dtype not in known:
        raise ConfigError(
            f"{log.source}: not understood: the cache dtype {dtype!r}. Logs are explained of "
            f"{', '.join(sorted(known))}; another needs rules that were checked against a "
            "published log of it. dsv4kv budget --engine sizes it without its log."
        )
    return dtype


def _drafts(log: rd.StartupLog) -> list[tuple[int, bool]]:
    method = rd.draft_method(log) or ""
    named = [(layers, True) for part, layers in DRAFT_LAYERS.items() if part in method]
    return named[:1] or [(0, False), (1, False), (3, False)]


def _indexers(log: rd.StartupLog) -> list[tuple[str, bool]]:
    fp4 = log.text("fp4_indexer")
    if fp4 is None:
        return [("fp8", False), ("mxfp4", False)]
    return [("mxfp4" if fp4.lower() == "true" else "fp8", True)]
