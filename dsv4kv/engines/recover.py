"""What a log's numbers came from: engine version, model, formats, blocks and tokens in flight.

``find_recoveries`` asks the module of an engine's folder; for engines whose slots are
allocated whole (llama.cpp, ds4) it is this one: ``recover``, ``nearest`` and ``meaning``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from dsv4kv.engines import logs
from dsv4kv.engines.contract import MIB, Capacity, Deployment, Engine, SlotEngine
from dsv4kv.engines.flags import DRAFT_LAYERS
from dsv4kv.engines.formats import Site, stored_formats
from dsv4kv.engines.names import FAMILIES, engine_family, find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import choose_formats
from dsv4kv.model.presets import load_model
from dsv4kv.units import counted

_ENTRY = "fp8_ds_mla"
_FORMAT = {"bf16": "bf16", "bfloat16": "bf16", "fp8_inc": "fp8"}
_FORMAT |= dict.fromkeys(("auto", "fp8", "fp8_e4m3", _ENTRY), _ENTRY)


@dataclass(frozen=True)
class Recovery:
    """One configuration that prints the numbers of a log."""

    engine: Engine
    deployment: Deployment
    available_bytes: int  # memory that yields the log's blocks
    units: int  # blocks, or full tokens
    flight_range: tuple[int, int]  # least and most tokens in flight that give the same numbers
    score: tuple[int, ...] = ()  # how well it agrees with the log's words, most important first
    exact: bool = True  # its numbers are the log's; otherwise the nearest that the rules can give

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
        one, unit = self.deployment, self.engine.unit
        parts = [self.engine.name, one.model.name, counted(one.draft_layers, "draft layer")]
        if unit != "slot":  # whose caches are of one type
            parts.append(f"indexer {one.formats.indexer.name}")
        if unit == "block":
            parts.append(f"{one.in_flight_tokens:,} tokens in flight")
        if one.state_bytes == 2:
            parts.append("bf16 state")
        return ", ".join(parts)

    def with_flight(self, tokens: int) -> "Recovery":
        return replace(self, deployment=replace(self.deployment, in_flight_tokens=tokens))


def find_recoveries(log: logs.StartupLog) -> list[Recovery]:
    """Configurations that print what the log says, the likeliest first; else the nearest."""
    rules = FAMILIES[log.family].load("log")
    different: dict[tuple[str, int], Recovery] = {}
    found = [*rules.recover(log)] or [*rules.nearest(log)]
    for each in sorted(found, key=lambda recovery: recovery.score, reverse=True):
        different.setdefault((each.title, each.units), each)
    return list(different.values())


def engines_of(log: logs.StartupLog) -> tuple[list[Any], bool]:
    """The version the log names, and that it does; else all versions, the newest first."""
    if log.version:
        try:
            return [find_engine(f"{log.family}:{log.version}")], True
        except ConfigError:
            pass
    names = engine_family(log.family) or [log.family]
    return [find_engine(name) for name in reversed(names)], False


def possible_deployments(log: logs.StartupLog) -> Iterator[tuple[Deployment, int]]:
    """Every model, number of draft layers and format that the log does not rule out.

    With the number of the log's statements that agree: model name, drafts, indexer format. V4.1 is
    stored as the newest engine does on each GPU and backend. Raises ``ConfigError``.
    """
    named, rules = logs.named_model(log), FAMILIES[log.family].load("log")
    own = named in (logs.V41, logs.V32)  # stored by GPU and backend
    block, smallest = log.whole("block"), 64 if own else 128
    block = block if block and block % smallest == 0 else None  # that of another table
    dtype = _cache_dtype(log, rules.V41_DTYPES if named == logs.V41 else _FORMAT)
    ranks = (log.whole("tensor_parallel") or 1) // (log.whole("data_parallel") or 1)
    arch = log.text("arch")
    sites = rules.V41_SITES if named == logs.V41 else ((arch, None),)
    sites = [site for site in sites if site[0] == arch] or sites
    method, fp4 = logs.draft_method(log) or "", log.text("fp4_indexer")
    drafting = [(layers, True) for part, layers in DRAFT_LAYERS.items() if part in method][:1]
    indexers = [("mxfp4" if (fp4 or "").lower() == "true" else "fp8", True)]
    seen = set()
    for name, (arch, backend), (drafts, agree), (keys, read) in product(
        [named] if named else logs.v4_presets(),
        sites,
        drafting or [(0, False), (1, False), (3, False)],
        indexers if fp4 is not None else [("fp8", False), ("mxfp4", False)],
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


def _cache_dtype(log: logs.StartupLog, known: Iterable[str]) -> str:
    dtype = (log.text("cache_dtype") or "auto").lower().removeprefix("torch.")
    if dtype not in known:
        raise ConfigError(
            f"{log.source}: not understood: the cache dtype {dtype!r}. Logs are explained of "
            f"{', '.join(sorted(known))}; another needs rules that were checked against a "
            "published log of it. dsv4kv budget --engine sizes it without its log."
        )
    return dtype


# ---- slots


def recover(log: logs.StartupLog) -> Iterator[Recovery]:
    """The slots that a log names; where it prints buffers, those that have their bytes."""
    reading = log.smallest
    session, buffers = reading.number("session_mib"), reading.number("buffers_mib")
    for found in nearest(log):
        engine, one = found.engine, found.deployment
        assert isinstance(engine, SlotEngine)
        printed, off = found.available_bytes / MIB, 0.006 * (reading.whole("buffers") or 0)
        if session:  # without states
            parts = engine.slot_parts(one, one.max_context_tokens)
            printed, off = (sum(parts.values()) - parts["states"]) / MIB, 0.006
        if abs(printed - (session or buffers or printed)) <= off:
            yield replace(found, exact=True)


def nearest(log: logs.StartupLog) -> Iterator[Recovery]:
    """The slots that a log names, whatever bytes it prints."""
    engine, reading = find_engine(log.family), log.smallest
    assert isinstance(engine, SlotEngine)
    for base, agreeing in possible_deployments(log):
        one = replace(
            base,
            max_context_tokens=reading.whole("slot_context") or 1,
            concurrency=reading.whole("slots") or 1,
            in_flight_tokens=reading.whole("ubatch") or engine.usual_step,
            cache_dtype=reading.fields.get("kv_type", "auto"),
            unified_slots=reading.fields.get("unified") == "true",
            draft_tokens=reading.whole("taken_back") or 0,
        )
        try:
            memory, slots = engine.shared_bytes(one), engine.slots(one)
        except ConfigError:  # not its type
            continue
        score = (agreeing, -one.draft_layers)
        yield Recovery(engine, one, memory, slots, (1, 1), score=score, exact=False)


def meaning(log: logs.StartupLog, found: Recovery, capacity: Capacity) -> Iterator[str]:
    reading = log.smallest
    if buffers := reading.number("buffers_mib"):
        yield f"The printed buffers are {buffers:,.2f} MiB in all."
    if session := reading.number("session_mib"):
        yield f"The printed context buffers are {session:,.2f} MiB."
    if not (buffers or session or reading.fields.get("kv_type")):
        yield "Not certain: this log prints no cache type and no ubatch; the usual are assumed."
    if found.exact:
        yield capacity.note
