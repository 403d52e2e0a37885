"""Every operation of the table on every kind of cache: what all backends are held against."""

import functools
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dsv4kv.model.plan import CachePlan, choose_formats, plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.ops import check, cpu, cuda
from dsv4kv.ops.cuda import launch as launching
from dsv4kv.ops.launches import Launch
from dsv4kv.ops.scenes import Call, Scene, make_call, scenes_of
from dsv4kv.ops.spec import OPERATIONS
from dsv4kv.ops.storage import Entries, PageStore, PartWrite
from tests.kernels.shim import twin

CPU = torch.device("cpu")
SEED = 7

# The reference is literal and slow: it answers a call once, for all that are held against it.
vars(check)["expect"] = functools.cache(check.expect)


def cache(
    formats: tuple[str, str, str] | None = None, model_name: str = "v4-flash", **options: Any
) -> CachePlan:
    """One layer of each attention of V4-Flash; formats are those of main, window and indexer."""
    model = load_model(model_name)
    chosen = choose_formats(model, *formats) if formats else None
    return plan_cache(
        model, max_context_tokens=4096, num_slots=4, layers=[0, 2, 3], formats=chosen, **options
    )


CACHES = {
    "as shipped": cache(),
    "long blocks": cache(block_tokens=256),
    "drafts": cache(draft_tokens=3),
    "online states": cache(state="online"),
    "V4.1 formats": cache(("fp4", "fp8_group32", "fp8")),
    "V4.1": cache(("fp4_interleaved", "fp8_group32_interleaved", "mxfp4"), "v4.1-flash"),
    "V3.2": cache(None, "v3.2"),
    "unquantised": cache(("bf16", "bf16", "bf16"), hadamard=False),
    "8 bits": cache(("fp8", "fp8", "fp8"), rope="float64"),
    "8 bits in groups": cache(("fp8_group32", "fp8_group32", "mxfp4")),
    "V3.2 in 16 bits": cache(("bf16", "fp8_ds_mla", "fp8"), "v3.2"),
}
"""Every entry format, states of both kinds, and every kind of layer."""


def _all_scenes() -> Iterator[tuple[str, Scene]]:
    shown = set()
    for name, plan in CACHES.items():
        for scene in scenes_of(plan, SEED):
            key = scene.operation, scene.subject
            if "pages" not in scene.subject or key not in shown:
                yield f"{scene.operation} {scene.subject}, {name}", scene
            shown.add(key)


SCENES = dict(_all_scenes())
"""Each operation on each kind of pages and states, by name."""


def on_twin(operation: str, **how: Any) -> Callable[..., None]:
    """The kernels' CPU twin; ``reverse`` and ``seed`` order threads, ``variant`` is one way."""
    order = {name: how.pop(name) for name in ("reverse", "seed") if name in how}

    def run(**tensors: Any) -> None:
        def prepare(launch: Launch) -> Callable[[], None]:
            return partial(twin.run, launch, **order)

        with patch.object(launching, "_launcher", lambda: SimpleNamespace(prepare=prepare)):
            getattr(cuda, operation)(**tensors, **how)

    return run


TWIN = SimpleNamespace(**{operation: on_twin(operation) for operation in OPERATIONS})
"""The twin as a backend."""


def on_cpu(operation: str) -> Callable[..., None]:
    """The CPU backend."""
    function: Callable[..., None] = getattr(cpu, operation)
    return function


def tensors_of(argument: Any) -> Iterator[Tensor]:
    """Every tensor that an operation may write."""
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, PageStore):
        yield argument.pages
    elif isinstance(argument, Entries):
        yield argument.store.pages
    elif isinstance(argument, PartWrite):
        yield from (argument.state, argument.store.pages)
    elif isinstance(argument, tuple):
        for each in argument:
            yield from tensors_of(each)


def bytes_after(
    scene: Scene, run: Callable[..., None], device: torch.device = CPU
) -> list[Tensor]:
    """All that a call may have written, as bytes, by a fresh call of the scene."""
    call: Call = make_call(scene.make, device, SEED)
    run(**call.arguments)
    found = (each for argument in call.arguments.values() for each in tensors_of(argument))
    return [each.cpu().contiguous().view(torch.uint8) for each in found]
