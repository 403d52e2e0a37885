"""Settings that would alter a printed number, each tried by the engine's own rules."""

from collections.abc import Iterator
from dataclasses import replace

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import entry_format
from dsv4kv.model.schema import CacheFormats
from dsv4kv.sizing.deployment import Deployment
from dsv4kv.sizing.engines.contract import Engine
from dsv4kv.sizing.engines.registry import find_engine
from dsv4kv.sizing.logs.explanation import Change
from dsv4kv.sizing.logs.parse import StartupLog
from dsv4kv.sizing.logs.recovery import Recovery

GIB = 2**30
_SMALL_CHUNK = 2048
_SHORT_CONTEXT = 131_072
_SMALL_RATIO = 0.05

_Trial = tuple[str, Engine, Deployment, int]


def shown_tokens(engine: Engine, deployment: Deployment, available_bytes: int) -> int:
    """The number that is printed, or that would be, had the engine not refused to start."""
    capacity = engine.capacity(deployment, available_bytes)
    if capacity.printed_tokens is not None:
        return capacity.printed_tokens
    return int(capacity.concurrency * deployment.max_context_tokens)


def find_changes(recovery: Recovery, log: StartupLog) -> tuple[Change, ...]:
    """Every change with its gain, the one that alters the number most first."""
    now = shown_tokens(recovery.engine, recovery.deployment, recovery.available_bytes)
    changes = []
    for what, engine, deployment, memory in _trials(recovery):
        try:
            tokens = shown_tokens(engine, deployment, memory)
        except ConfigError:  # the engine does not serve it
            continue
        changes.append(Change(what, tokens, tokens - now))
    changes += _replicas(log, now)
    return tuple(
        sorted(
            (change for change in changes if change.gain_tokens),
            key=lambda change: -abs(change.gain_tokens),
        )
    )


def _trials(recovery: Recovery) -> Iterator[_Trial]:
    engine, deployment = recovery.engine, recovery.deployment
    memory, family = recovery.available_bytes, recovery.engine.name.partition(":")[0]
    yield "1 GiB more memory", engine, deployment, memory + GIB
    for what, changed in _common(deployment):
        yield what, engine, changed, memory
    settings = _vllm(deployment) if family == "vllm" else _sglang(deployment)
    for what, changed in settings:
        yield what, engine, changed, memory
    newest = find_engine(family)
    if newest.name != engine.name:
        yield f"the rules of {newest.name}", newest, deployment, memory


def _common(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    if deployment.draft_layers:
        yield "no draft layers", replace(deployment, draft_layers=0, draft_tokens=0)
    if deployment.formats.indexer.name == "fp8":
        keys = entry_format("indexer", "mxfp4")
        formats = CacheFormats(deployment.formats.main, deployment.formats.window, keys)
        yield "indexer keys in mxfp4", replace(deployment, formats=formats)


def _vllm(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    context, flight = deployment.max_context_tokens, deployment.in_flight_tokens
    if flight > _SMALL_CHUNK:
        what = f"{_SMALL_CHUNK:,} tokens in flight (max_num_batched_tokens × batches at once)"
        yield what, replace(deployment, in_flight_tokens=_SMALL_CHUNK)
    for other in (_SHORT_CONTEXT, deployment.model.max_context_tokens):
        if other != context:
            yield f"max_model_len {other:,}", replace(deployment, max_context_tokens=other)


def _sglang(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    if deployment.window_ratio is None or deployment.window_ratio > _SMALL_RATIO:
        what = f"swa_full_tokens_ratio {_SMALL_RATIO}"
        yield what, replace(deployment, window_ratio=_SMALL_RATIO)
    if deployment.state_bytes != 2:
        yield "compressor states in bf16", replace(deployment, state_bytes=2)
    if not deployment.online_state and not deployment.draft_layers:
        yield "HCA states online", replace(deployment, online_state=True)
    if deployment.concurrency and deployment.concurrency > 1:
        half = deployment.concurrency // 2
        yield f"max_running_requests {half:,}", replace(deployment, concurrency=half)


def _replicas(log: StartupLog, now: int) -> list[Change]:
    """The one KV head is replicated: every rank of a tensor-parallel group holds the same."""
    ranks = log.whole("tensor_parallel") or 1
    if ranks == 1:
        return []
    what = (
        f"data_parallel_size {ranks} instead of tensor_parallel_size {ranks}, all replicas "
        "together (if as much memory stays free)"
    )
    return [Change(what, now * ranks, now * (ranks - 1))]
