"""Small serving runs with real bytes, in one call."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dsv4kv.bench.build import Drive, build_drive, plan_from
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.bench.serve.loop import ServingLoop
from dsv4kv.bench.serve.verifier import Verifier
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import load_config
from dsv4kv.ops.registry import resolve_backend
from dsv4kv.runs.schema import Totals
from dsv4kv.traces.request import Request

Meddle = Callable[[KVCacheManager, int], None]
"""Is given the cache and the number of steps before the last, between two steps."""

_TINY = (
    "cache.max_context_tokens=512",
    "workload.concurrency=2",
    "workload.step_tokens=64",
    "measure.warmup_steps=0",
    "measure.verify_every=1",
    "workload.step=gather",
)


@dataclass(frozen=True)
class Served:
    """What a run leaves behind."""

    totals: Totals
    manager: KVCacheManager
    recorder: Recorder
    verifier: Verifier


def make_config(*settings: str) -> BenchConfig:
    """V4-Flash's layers 0 (SWA), 2 (CSA) and 3 (HCA), every step checked, with settings."""
    given = {setting.partition("=")[0] for setting in settings}
    tiny = [setting for setting in _TINY if setting.partition("=")[0] not in given]
    return load_config("smoke", [*tiny, *settings]).config


def serving(
    concurrency: int, step_tokens: int, draft_tokens: int = 0, acceptance: float = 0.0, **more: Any
) -> BenchConfig:
    """How requests are served, with nothing checked or left out at the beginning."""
    drafts = {"draft_tokens": draft_tokens, "acceptance": acceptance}
    served = {"concurrency": concurrency, "step_tokens": step_tokens, "speculative": drafts}
    measured = {"warmup_steps": 0, "verify_every": 0, "seed": more.pop("seed", 0)}
    return BenchConfig.model_validate({"workload": served | more, "measure": measured})


def make_requests(*lengths: tuple[int, int]) -> list[Request]:
    """Requests of (input, output) tokens."""
    return [Request(0.0, input_tokens, output_tokens) for input_tokens, output_tokens in lengths]


def drive_on_cpu(config: BenchConfig, manager: KVCacheManager, recorder: Recorder) -> Drive:
    """What moves the bytes of a cache on the CPU."""
    return build_drive(config, manager, recorder, resolve_backend("cpu", "cpu"))


def serve(
    lengths: Iterable[tuple[int, int]], *settings: str, meddle: Meddle | None = None
) -> Served:
    """Serve requests of (input, output) tokens with data, until a check fails."""
    config = make_config(*settings)
    manager, recorder = KVCacheManager(plan_from(config)), Recorder()
    drive = drive_on_cpu(config, manager, recorder)
    verifier = drive.verifier
    requests, settled = make_requests(*lengths), config
    loop = ServingLoop(manager, requests, settled, recorder, drive.executor)
    for _ in loop.steps():
        if verifier.failures:
            break  # the rest of the run would add nothing
        if meddle:
            meddle(manager, loop.totals.steps)
    return Served(loop.totals, manager, recorder, verifier)
