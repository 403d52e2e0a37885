"""What an engine holds on a GPU other than weights and cache, as far as its code says how much."""

from typing import NamedTuple


class Held(NamedTuple):
    """One thing that is held.

    Attributes:
        what: What it is.
        size_bytes: Bytes of one GPU.
        source: Version and file that say so.
    """

    what: str
    size_bytes: int
    source: str


class Overhead(NamedTuple):
    """All that is known to be held.

    Attributes:
        reserve: In the share of a GPU that may be used.
        headroom: In what that share leaves of the GPU.
        unknown: What no code says the size of: not counted by itself.
    """

    reserve: tuple[Held, ...]
    headroom: tuple[Held, ...]
    unknown: tuple[str, ...]


_MEASURED = (
    "activations of a step",
    "workspaces of experts",
    "CUDA graphs",
    "buffers of NCCL and DeepEP",
    "CUDA context",
)
UNKNOWN = Overhead((), (), _MEASURED)
