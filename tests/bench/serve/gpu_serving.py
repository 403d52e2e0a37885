"""Serving runs on the GPU made of the kernels' CPU twin."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dsv4kv.bench.build import Drive, build_drive, build_manager, plan_from
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.bench.serve.loop import ServingLoop
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig
from dsv4kv.ops.registry import resolve_backend
from dsv4kv.ops.spec import choose
from dsv4kv.runs.schema import Totals
from tests.bench.serve.serving import make_config, make_requests
from tests.gpu_twin import TwinGpu, twin_device, twin_gpu


@dataclass(frozen=True)
class TwinBench:
    """A cache on the twin, with what drives it."""

    gpu: TwinGpu
    config: BenchConfig
    manager: KVCacheManager
    recorder: Recorder
    drive: Drive

    def serve(self, *lengths: tuple[int, int]) -> Totals:
        """Serve requests of (input, output) tokens."""
        requests, settled = make_requests(*lengths), self.config
        executor = self.drive.executor
        return ServingLoop(self.manager, requests, settled, self.recorder, executor).run()


def build(gpu: TwinGpu, *settings: str) -> TwinBench:
    """V4-Flash's layers 0 (SWA), 2 (CSA) and 3 (HCA) with settings; inside ``twin_gpu``."""
    return build_from(gpu, make_config(*settings))


def build_from(gpu: TwinGpu, config: BenchConfig) -> TwinBench:
    """What a configuration describes; inside ``twin_gpu``."""
    device, recorder = twin_device(gpu), Recorder()
    manager = build_manager(config, plan_from(config), device)
    variants = choose(config.ops.variant.model_dump(), device.architecture)
    resolved = resolve_backend("cuda", "cuda", variants)
    drive = build_drive(config, manager, recorder, resolved, device)
    return TwinBench(gpu, config, manager, recorder, drive)


def serve_on_twin(lengths: Iterable[tuple[int, int]], *settings: str) -> TwinBench:
    """Build and serve; the bytes stay as the last request left them."""
    with twin_gpu() as gpu:
        bench = build(gpu, *settings)
        bench.serve(*lengths)
    return bench


def cache_bytes(manager: KVCacheManager) -> dict[str, torch.Tensor]:
    """A copy of every pool's memory, as bytes."""
    found = {f"main {i}": pool.main.pages for i, pool in manager.pools.items()}
    found |= {f"indexer {i}": p.indexer.pages for i, p in manager.pools.items() if p.indexer}
    for attn, states in manager.states.items():
        found |= {f"window {attn} {i}": ring.pages for i, ring in enumerate(states.windows)}
        found |= {f"state {attn} {i}": state for i, state in enumerate(states.states())}
    return {name: memory.view(torch.uint8).clone() for name, memory in found.items()}
