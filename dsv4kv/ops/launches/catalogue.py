"""Every kernel that the shipped models need, launched by the scenes that check operations.

Operations themselves make them, so what is compiled and looked at is what a run launches.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from dsv4kv.model.plan import CachePlan, plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import choose_formats, table_groups
from dsv4kv.ops import cuda
from dsv4kv.ops.cuda.launch import foresee
from dsv4kv.ops.launches import launch as la
from dsv4kv.ops.launches import pages, reads
from dsv4kv.ops.launches.launch import KernelModule, Launch
from dsv4kv.ops.scenes import Arguments, Scene, make_call, scenes_of
from dsv4kv.ops.spec import OPERATIONS, VARIANTS, Variant
from dsv4kv.ops.storage import PageStore

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120")
"""A100; H100 and H200; B200; B300; RTX 50."""

_META = torch.device("meta")
_WITH_227_KIB = ("sm_90a", "sm_100a", "sm_103a")  # of shared memory a block
_SHARED = {"large": la.LARGE, "small": la.SMALL}
_SHAPES = {"wide": reads.WIDE, "narrow": reads.NARROW, "groups": reads.GROUPS}
_BLOCK_TOKENS = 128  # larger pages change constants alone
_CONTEXT_TOKENS = 1 << 14  # fewer than a model's, for small tables of cosines


def _cache(model: str, *formats: str, **options: object) -> CachePlan:
    """One layer of each schema of a model."""
    config = load_model(model).model_copy(update={"max_context_tokens": _CONTEXT_TOKENS})
    kinds = {(layer.attn, layer.ratio, layer.owns_kv): layer for layer in build_schedule(config)}
    return plan_cache(
        config,
        max_context_tokens=_CONTEXT_TOKENS,
        num_slots=4,
        block_tokens=_BLOCK_TOKENS,
        layers=[layer.layer_idx for layer in kinds.values()],
        formats=choose_formats(config, *formats) if formats else None,
        **options,  # type: ignore[arg-type]
    )


def _caches() -> Iterator[tuple[str, CachePlan, tuple[str, ...], str]]:
    """Caches, operations that show their formats or states, and part of the scenes' subjects."""
    yield "V4", _cache("v4-flash"), tuple(OPERATIONS), ""
    states = ("state_append", "step_write", "flush", "compress_chunk")
    yield "V4 online", _cache("v4-flash", state="online"), states, ""
    # what Hopper has of keys, so it alone pools them; and angles in float64
    other = _cache("v4-flash", "fp8_ds_mla", "fp8_ds_mla", "fp8", rope="float64")
    yield "V4 FP8 keys", other, ("index_scores", "flush", "compress_chunk"), "indexer"
    yield "V4.1", _cache("v4.1-flash"), tuple(OPERATIONS), ""
    yield "V3.2", _cache("v3.2"), tuple(OPERATIONS), ""


@dataclass(frozen=True)
class Example:
    """A launch of one kernel and what it works on: ``fp8_ds_mla × 32``, ``csa-4 ring``."""

    subject: str  # its pages or states, the cache, and its variant where there are several
    launch: Launch  # what is launched
    architectures: tuple[str, ...] | None = None  # that it is for; None for all

    def runs_on(self, architecture: str) -> bool:
        """Whether an architecture has what the kernel takes."""
        return self.architectures is None or architecture in self.architectures


_CONSTANTS = re.compile(
    r"DSV_((MAIN|KEYS|WINDOW)_)?((PAGE_)?ENTRIES|PAGE_BYTES|SCALE_START|HEADS|SHARED_BYTES)"
)


def catalogue() -> list[Example]:
    """One example of each kernel of each module, in a fixed order.

    Of modules that differ in constants alone, sizes of pages and numbers of heads, the one with
    most. Interleaved formats are such modules, too: their scales have other offsets.
    """
    modules: dict[object, dict[KernelModule, dict[str, Example]]] = {}
    for example in (*_scene_examples(), *_other_examples()):
        module = example.launch.module
        macros = tuple(each for each in module.macros if not _CONSTANTS.fullmatch(each[0]))
        alike = modules.setdefault((module.source, macros), {})
        alike.setdefault(module, {}).setdefault(example.launch.kernel, example)
    chosen = (max(alike.values(), key=len) for alike in modules.values())
    return [example for kernels in chosen for example in kernels.values()]


def _scene_examples() -> Iterator[Example]:
    for name, plan, operations, subject in _caches():
        for scene in scenes_of(plan, 0):
            if scene.operation not in operations or subject not in scene.subject:
                continue
            arguments = make_call(scene.make, _META, 0).arguments
            for variant, architectures in _ways(scene, name).items():
                title = ", ".join(filter(None, (scene.subject, name, variant)))
                for launch in _launches(scene.operation, variant, arguments):
                    everywhere = launch.kernel == "merge_parts"
                    yield Example(title, launch, None if everywhere else architectures)


def _ways(scene: Scene, cache: str) -> dict[str, tuple[str, ...] | None]:
    """Variants that a scene shows, and the architectures that have them: of V4's entries all."""
    first = cache == "V4" and "indexer" not in scene.subject
    others = tuple(each for each in ARCHITECTURES if each not in _WITH_227_KIB)
    if scene.operation == "index_scores":
        return {"large": None, "small": others}  # small keys have large blocks everywhere
    if scene.operation == "attend":
        shapes: dict[str, tuple[str, ...] | None]
        # few heads take narrow blocks everywhere, but no model has so few
        shapes = {"wide": _WITH_227_KIB, "groups": ("sm_90a",), "narrow": others}
        chosen = "csa" in scene.subject
        if not chosen:
            del shapes["narrow"]
        return shapes if chosen or first else {}
    ways = _compared(scene.operation)
    if cache == "V4 FP8 keys":
        return {next(iter(ways)): ("sm_90a",)}
    return ways if first else dict(list(ways.items())[:1])


def _compared(operation: str) -> dict[str, tuple[str, ...] | None]:
    """The variant in use everywhere; others where they are compared with it, or alone run."""
    ways = VARIANTS.get(operation, {"": Variant("")})
    found = {name: how.architectures or ("sm_90a",) for name, how in ways.items()}
    return {**found, next(iter(ways)): None}


def _launches(operation: str, variant: str, arguments: Arguments) -> list[Launch]:
    if operation == "attend":
        return list(reads.plan_attend(**arguments, shape=_SHAPES[variant], blocks=2))
    if operation == "index_scores":
        return [reads.plan_index_scores(**arguments, most_shared=_SHARED[variant])]
    with foresee() as launches:
        getattr(cuda, operation)(**arguments, **({"variant": variant} if variant else {}))
    return launches


def _empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


def _other_examples() -> Iterator[Example]:
    """What no operation is, or what it launches for more than a scene has."""
    config = load_model("v4-flash")
    int32, int64 = partial(_empty, torch.int32), partial(_empty, torch.int64)
    plan = _cache("v4-flash")
    main = next(each.main for each in plan.schemas if each.indexer)
    assert main
    store = PageStore.allocate(main, 2, _META)
    out = _empty(torch.bfloat16, 4, main.format.dims)
    for variant, architectures in _compared("gather_topk").items():
        launch = pages.plan_gather_entries(store, int32(4), out, variant=variant)
        title = f"pages of {main.entries} {main.format.name} entries, V4, {variant}"
        yield Example(title, launch, architectures)
    scores, lengths, chosen = _empty(torch.float32, 4, 16 * reads.RUN), int64(4), int32(4, 512)
    rows = int32(4, 8), int64(4), 64, chosen, chosen
    for blocks, size in ((None, ""), (int32(4, 2 * reads.RUN), " of blocks of 8")):
        for launch in reads.plan_select_topk(scores, lengths, blocks, *rows):
            yield Example(f"long rows{size}", launch)
    for launch in reads.plan_select_blocks(scores, lengths, 8, chosen):
        yield Example("long rows", launch)
    (group,) = table_groups(plan_cache(config, max_context_tokens=1, num_slots=1).schemas, "model")
    cells, sizes = int32(1, 4, group.blocks_for(131_072)), (group.ratio, group.entries_per_block)
    completed = pages.plan_completed(cells, *sizes, lengths, lengths, lengths[None])
    yield Example("block table", completed)
    memory, numbers = _empty(torch.uint8, 4096), int64(2, 2)
    for launch in (
        pages.plan_copy_peak(memory, memory),
        pages.plan_read_peak(memory, int32(pages.THREADS)),
        pages.plan_write_peak(memory),
        pages.plan_nothing(memory),
        pages.plan_objects("take", numbers, numbers, memory, 1024, 2048),
        pages.plan_objects("put", numbers, numbers, memory, 1024, 2048),
    ):
        yield Example("16-byte chunks", launch)
