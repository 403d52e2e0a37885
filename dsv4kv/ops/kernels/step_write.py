"""Launch plan of all that a decode step writes to one layer."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.ops.kernels.launch import WARP, KernelModule, Launch
from dsv4kv.ops.kernels.macros import format_macros
from dsv4kv.ops.kernels.state import finish_parameters, flush_macros, pool_threads, split_of
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.variants import portable
from dsv4kv.ops.writes import Parts, PartWrite

_PREFIXES = ("MAIN", "KEYS")
_MOST_HELPERS = 128  # threads of a block that append: with more, few blocks find room
_FLOATS_PER_THREAD = 4


def split_of_write(part: PartWrite) -> int:
    """Blocks that share an entry: of a ring as for ``flush``; an online state needs one."""
    return split_of(part.compressor) if part.state.dim() == 4 else 1


def plan_step_write(
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    parts: Parts,
    *,
    scratch: Tensor | None = None,
    arrivals: Tensor | None = None,
) -> Launch:
    """See ``contract.Backend.step_write``.

    scratch: float32[at least T, d], needed where blocks share an entry (``split_of_write`` is more
    than 1); what it holds does not matter before or after.
    arrivals: int32[at least T], needed there too: zeros, and zeros again afterwards.
    """
    main, indexer, split = parts[0], len(parts) > 1, split_of_write(parts[0])
    if any(len(part.state) != len(ring.pages) for part in parts):
        raise ConfigError("a step is written to a ring and to states of as many slots.")
    if split > 1 and (scratch is None or arrivals is None):
        raise ConfigError(f"{split} blocks share an entry: give them scratch and arrivals.")
    helpers, threads = _helpers(main, split), _pooling_threads(main, split)
    macros = {"DSV_HELPERS": helpers, "DSV_INDEXER": int(indexer)}
    macros |= _prefixed("WINDOW", dict(format_macros(ring.layout)) | {"DSV_PAIRED": 0})
    for prefix, part in zip(_PREFIXES, parts, strict=False):
        own = flush_macros(
            part.compressor, part.state, part.store, portable("flush"), split_of_write(part)
        )
        macros |= _prefixed(prefix, own)
    meeting = (0, 0) if scratch is None or arrivals is None else (scratch, arrivals)
    arguments = [ring.pages, values, slots, positions, len(slots), len(ring.pages), *meeting]
    return Launch(
        KernelModule("step_write.cuh", tuple(sorted(macros.items()))),
        "step_write",
        (max(1, len(slots) * len(parts)), split),
        threads + helpers + WARP,
        (*arguments, *(argument for part in parts for argument in _arguments(part))),
    )


def _pooling_threads(part: PartWrite, split: int) -> int:
    return WARP if part.state.dim() == 3 else pool_threads(part.compressor, split)


def _helpers(part: PartWrite, split: int) -> int:
    """Threads that append a block's channels while others pool; an online state needs none."""
    if part.state.dim() == 3:
        return 0
    fours = part.compressor.channels // split // _FLOATS_PER_THREAD
    return min(_MOST_HELPERS, -(-fours // WARP) * WARP)


def _arguments(part: PartWrite) -> Iterator[Tensor | int]:
    compressor = part.compressor
    yield from (part.state, part.kv, part.score, compressor.ape, part.entries)
    yield from (*finish_parameters(compressor), part.store.pages)
    yield from (part.store.num_entries, compressor.groups)


def _prefixed(prefix: str, macros: Mapping[str, int]) -> dict[str, int]:
    return {name.replace("DSV_", f"DSV_{prefix}_"): value for name, value in macros.items()}
