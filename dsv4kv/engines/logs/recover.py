"""What a log's numbers came from: engine version, model, formats, blocks and tokens in flight."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dsv4kv.engines.contract import Deployment, Engine
from dsv4kv.engines.flags import DRAFT_LAYERS
from dsv4kv.engines.formats import Site, stored_formats
from dsv4kv.engines.logs.read import (
    V41,
    Reading,
    StartupLog,
    draft_method,
    named_model,
    v4_presets,
)
from dsv4kv.engines.names import FAMILIES, engine_family, find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import CacheFormats, choose_formats

_ENTRY = "fp8_ds_mla"
_FORMAT = {"bf16": "bf16", "bfloat16": "bf16", "fp8_inc": "fp8"}
_FORMAT |= dict.fromkeys(("auto", "fp8", "fp8_e4m3", _ENTRY), _ENTRY)


@dataclass(frozen=True)
class Recovery:
    """One configuration whose numbers are those of a log.

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

    @property
    def title(self) -> str:
        """Engine, model and what distinguishes it, for lists of candidates."""
        deployment = self.deployment
        drafts = deployment.draft_layers
        parts = [
            self.engine.name,
            deployment.model.name,
            f"{drafts} draft layer{'s' if drafts != 1 else ''}",
            f"indexer {deployment.formats.indexer.name}",
        ]
        if self.engine.unit == "block":
            parts.append(f"{deployment.in_flight_tokens:,} tokens in flight")
        if deployment.state_bytes == 2:
            parts.append("bf16 state")
        return ", ".join(parts)

    def with_flight(self, tokens: int) -> "Recovery":
        """The same with another number of tokens in flight."""
        return replace(self, deployment=replace(self.deployment, in_flight_tokens=tokens))


def recover(log: StartupLog, reading: Reading) -> list[Recovery]:
    """Configurations that print what the log says, the likeliest first; else the nearest.

    Raises:
        ConfigError: The log names a model whose cache is not DeepSeek-V4's.
    """
    rules = FAMILIES[log.family].load("log")
    first: dict[tuple[str, int], Recovery] = {}
    for search in (rules.recover, rules.nearest):
        for found in [] if first else search(log, reading):
            first.setdefault((found.title, found.units), found)
    return sorted(first.values(), key=lambda recovery: recovery.score, reverse=True)


def likeliest(recoveries: list[Recovery]) -> list[Recovery]:
    """Those that agree with the log as well as the first does."""
    return [found for found in recoveries if found.score == recoveries[0].score]


def engines_of(log: StartupLog) -> tuple[list[Any], bool]:
    """The version the log names, and that it does; else all versions, the newest first."""
    if log.version:
        try:
            return [find_engine(f"{log.family}:{log.version}")], True
        except ConfigError:
            pass
    return [find_engine(name) for name in reversed(engine_family(log.family))], False


# ---- models and formats -------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A model and what is served of it, with how well the log's words agree.

    Attributes:
        draft_layers: Draft layers in addition to the model's own.
        agreeing: Statements of the log that agree: model name, drafts, indexer format.
        arch: What the GPU's kernels are compiled for, where formats go by it (V4.1).
    """

    model: DSV4Config
    formats: CacheFormats
    draft_layers: int
    agreeing: int
    arch: str | None = None


def possible_setups(log: StartupLog) -> Iterator[Setup]:
    """Every model, number of draft layers and indexer format that the log does not rule out.

    Raises:
        ConfigError: The log names a model whose cache is not DeepSeek-V4's, or a cache dtype
            that no published log of it has had.
    """
    named = named_model(log)
    if named == V41:
        yield from _setups_of_v41(log)
        return
    dtype = _cache_dtype(log, _FORMAT)
    main = _FORMAT[dtype]
    for name in [named] if named else v4_presets():
        model = load_model(name)
        for (drafts, drafts_agree), (keys, keys_agree) in product(_drafts(log), _indexers(log)):
            agreeing = (named is not None) + drafts_agree + keys_agree
            yield Setup(model, choose_formats(model, main, main, keys), drafts, agreeing)


def _setups_of_v41(log: StartupLog) -> Iterator[Setup]:
    """Every way in which the newest engine stores V4.1, by GPU, backend and indexer keys."""
    rules, engine = FAMILIES[log.family].load("log"), engine_family(log.family)[-1]
    model, dtype = load_model(V41), _cache_dtype(log, rules.V41_DTYPES)
    ranks = (log.whole("tensor_parallel") or 1) // (log.whole("data_parallel") or 1)
    seen = set()
    for (arch, backend), (drafts, agree), (keys, read) in product(
        rules.V41_SITES, _drafts(log), _indexers(log)
    ):
        site = Site(engine, model, arch, max(ranks, 1), backend=backend, dtype=dtype)
        asked = "mxfp4" if keys == "mxfp4" else None
        try:
            names = [name for name, _ in stored_formats(site, {"indexer": asked}).values()]
        except ConfigError:  # not on this GPU
            continue
        if (key := (arch, *names, drafts)) not in seen:
            seen.add(key)
            formats = choose_formats(model, *names)
            yield Setup(model, formats, drafts, 1 + agree + read, arch)


def _cache_dtype(log: StartupLog, known: Iterable[str]) -> str:
    dtype = (log.text("cache_dtype") or "auto").lower().removeprefix("torch.")
    if dtype not in known:
        raise ConfigError(
            f"{log.source}: not understood: the cache dtype {dtype!r}. Logs are explained of "
            f"{', '.join(sorted(known))}; another needs rules that were checked against a "
            "published log of it. dsv4kv budget --engine sizes it without its log."
        )
    return dtype


def _drafts(log: StartupLog) -> list[tuple[int, bool]]:
    method = draft_method(log) or ""
    named = [(layers, True) for part, layers in DRAFT_LAYERS.items() if part in method]
    return named[:1] or [(0, False), (1, False), (3, False)]


def _indexers(log: StartupLog) -> list[tuple[str, bool]]:
    fp4 = log.text("fp4_indexer")
    if fp4 is None:
        return [("fp8", False), ("mxfp4", False)]
    return [("mxfp4" if fp4.lower() == "true" else "fp8", True)]


def block_tokens(log: StartupLog) -> int | None:
    """The block or page size of the arguments; other tables' sizes are no such multiples."""
    block, smallest = log.whole("block"), 64 if named_model(log) == V41 else 128
    return block if block and block % smallest == 0 else None
