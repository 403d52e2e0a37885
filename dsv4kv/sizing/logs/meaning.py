"""Sentences about a log: what is known of its configuration and how, and what its number is."""

from collections.abc import Iterator

from dsv4kv.sizing.engines.contract import Capacity
from dsv4kv.sizing.engines.vllm import VllmEngine
from dsv4kv.sizing.logs.explanation import How, Split, Statement
from dsv4kv.sizing.logs.parse import Reading, StartupLog
from dsv4kv.sizing.logs.recovery import Recovery
from dsv4kv.sizing.logs.setups import draft_method, named_model
from dsv4kv.units import format_bytes

_ECHOED = (
    ("tensor parallel", "tensor_parallel"),
    ("data parallel", "data_parallel"),
    ("pipeline parallel", "pipeline_parallel"),
    ("memory fraction", "memory_fraction"),
    ("cache dtype", "cache_dtype"),
    ("requests at once", "requests"),
    ("tokens of a step", "batched"),
)


def state(log: StartupLog, reading: Reading, found: Recovery) -> tuple[Statement, ...]:
    """The configuration: every part read, inferred from the numbers, or assumed."""
    return tuple(_statements(log, reading, found))


def describe(
    reading: Reading, found: Recovery, capacity: Capacity, split: Split
) -> tuple[str, ...]:
    """What the number means, in sentences."""
    sentences = _vllm if isinstance(found.engine, VllmEngine) else _sglang
    doubts = [] if found.exact else [_doubt(found)]
    return (*doubts, *sentences(reading, found, capacity, split))


def _statements(log: StartupLog, reading: Reading, found: Recovery) -> Iterator[Statement]:
    deployment, family = found.deployment, found.engine.name.partition(":")[0]
    yield Statement("engine", family, "read")
    yield Statement(
        "rules",
        found.engine.name + (f" (the log says {log.version})" if log.version else ""),
        "read" if log.version else "inferred",
    )
    yield Statement("model", deployment.model.name, "read" if named_model(log) else _how(found))
    yield Statement(
        "draft layers", str(deployment.draft_layers), "read" if draft_method(log) else _how(found)
    )
    fp4 = log.text("fp4_indexer")
    yield Statement("indexer", deployment.formats.indexer.name, "read" if fp4 else _how(found))
    context_read = reading.whole("context") or reading.whole("refused_context")
    yield Statement(
        "longest request",
        f"{deployment.max_context_tokens:,} tokens",
        "read" if context_read or log.whole("context") else "assumed",
    )
    if family == "vllm":
        yield _flight(log, found)
        yield Statement("blocks", f"{found.units:,}", _how(found))
    else:
        yield Statement("state", "fp32" if deployment.state_bytes == 4 else "bf16", _how(found))
    for what, name in _ECHOED:
        if value := log.text(name):
            yield Statement(what, value, "read")


def _flight(log: StartupLog, found: Recovery) -> Statement:
    low, high = found.flight_range
    flight = found.deployment.in_flight_tokens
    if high >= found.deployment.max_context_tokens:
        span = f"{low:,} or more give the same"
    elif low == high:
        span = "exactly"
    else:
        span = f"{low:,} to {high:,} give the same"
    batched = log.whole("batched")
    times = f" = {flight // batched} × {batched:,}" if batched and flight % batched == 0 else ""
    return Statement("tokens in flight", f"{flight:,}{times} ({span})", _how(found))


def _how(found: Recovery) -> How:
    return "inferred" if found.exact else "assumed"


def _doubt(found: Recovery) -> str:
    return (
        "The numbers of this log do not follow from any known rules and what else it shows "
        f"(a limit, a fork, a feature that is not modelled): this is the nearest, {found.title}."
    )


def _vllm(reading: Reading, found: Recovery, capacity: Capacity, split: Split) -> Iterator[str]:
    context, unit = found.deployment.max_context_tokens, float(capacity.unit_bytes)
    if "tokens" in reading.fields:
        yield (
            f"{reading.fields['tokens']} tokens is no capacity: it is {capacity.units:,} blocks, "
            f"divided by the {split.counted:,.0f} that one request of {context:,} tokens is "
            f"counted with, times {context:,}."
        )
    else:
        yield (
            f"The start was refused: one request of {context:,} tokens is counted with "
            f"{split.counted:,.0f} blocks, and there are {capacity.units:,}."
        )
    yield (
        f"Of these {split.counted:,.0f} blocks {split.context:,.0f} hold the context, "
        f"{split.in_flight:,.0f} ({format_bytes(split.in_flight * unit)}) are a reserve for "
        f"{found.deployment.in_flight_tokens:,} tokens in flight, and {split.fixed:,.0f} are "
        "windows and states."
    )
    yield (
        f"In steady decode such a request holds {split.held:,.0f} blocks "
        f"({format_bytes(split.held * unit)}); its reserve is free for others then."
    )


def _sglang(reading: Reading, found: Recovery, capacity: Capacity, split: Split) -> Iterator[str]:
    full, unit = reading.whole("full_token") or 0, float(capacity.unit_bytes)
    yield (
        f"{full:,} full tokens of {unit:,.2f} B are shared by all requests: their contexts "
        "together cannot be longer."
    )
    yield (
        f"A request of {found.deployment.max_context_tokens:,} tokens takes {split.context:,.0f} "
        f"full tokens, and {format_bytes(split.fixed * unit)} of states beside them."
    )
