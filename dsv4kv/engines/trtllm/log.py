"""TensorRT-LLM's start-up lines: what they print; its pools are not explained."""

from collections.abc import Iterator
from dataclasses import replace

from dsv4kv.engines.contract import GIB, Capacity
from dsv4kv.engines.logs.read import Reading, StartupLog
from dsv4kv.engines.logs.recover import Recovery, possible_deployments
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError

DOUBT = (
    "TensorRT-LLM's rules were never compared with a log, so its pools are not explained. What "
    "follows is what the log itself prints."
)


def nearest(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """The deployment that the log names, with the memory that it prints."""
    engine = find_engine("trtllm")
    quota, free, share = (reading.number(name) for name in ("quota_gib", "free_gib", "share"))
    if not (memory := quota or (free or 0) * (share or 0)):
        return
    for deployment, agreeing in possible_deployments(log):
        one = replace(deployment, in_flight_tokens=log.whole("batched") or 1)
        try:
            units = engine.capacity(one, int(memory * GIB)).units
        except ConfigError:  # not its block or format
            continue
        yield Recovery(
            engine, one, int(memory * GIB), units, (1, 1), score=(agreeing,), exact=False
        )


def meaning(
    log: StartupLog, reading: Reading, found: Recovery, capacity: Capacity
) -> Iterator[str]:
    """The printed memory, in sentences."""
    quota, free, share = (reading.number(name) for name in ("quota_gib", "free_gib", "share"))
    if quota and free and share and abs(quota - free * share) <= 0.02:
        yield f"The cache takes {quota:.2f} GiB: {share:g} of {free:.2f} GiB that were free."
        return
    if free:
        of = f", of which the cache may take {share:g}" if share else ""
        yield f"{free:.2f} GiB were free for the cache{of}."
    if quota:
        yield f"The cache takes {quota:.2f} GiB."
