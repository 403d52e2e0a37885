"""What somebody else's code offers: some operations of the contract, for some formats.

Bridges to a gather that takes requests as rows of a block table. vLLM's
``dequantize_and_gather_k_cache`` and FlagGems' function of that name read the last ``gather_lens``
of ``seq_lens`` entries of every request and write nothing else. In addition to that function a
call therefore makes table rows of the slots (one small copy) and lengths as int32, and first fills
the output with zeros, because lengths are known on the device only.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, Protocol

from torch import Tensor

from dsv4kv.errors import PeerUnavailable
from dsv4kv.ops.contract import Backend
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.table import OPERATIONS

Operation = Callable[..., None]

PARAMETERS = {
    name: tuple(inspect.signature(getattr(Backend, name)).parameters)[1:] for name in OPERATIONS
}
"""Parameter names of every operation, in order; they are passed by position."""


@dataclass(frozen=True)
class Foreign:
    """Operations from elsewhere.

    Attributes:
        operations: By name in the contract.
        version: Of the package they come from, where known.
        formats: Entry formats they take; None takes all.
        bridging: The same operations around functions that do nothing: the rest of a call, without
            the foreign function. Empty where the operations take the contract's arguments as is.
    """

    operations: Mapping[str, Operation]
    version: str | None
    formats: tuple[str, ...] | None = None
    bridging: Mapping[str, Operation] = field(default_factory=dict)


def pages_position(operation: str) -> int | None:
    """Which argument of an operation its pages are; None for ``state_append``, without pages."""
    parameters = PARAMETERS[operation]
    return next((i for i, name in enumerate(parameters) if name in ("store", "ring")), None)


class PagedGather(Protocol):
    """A package's gather, its pages given as the toolkit has them."""

    def __call__(
        self,
        out: Tensor,
        store: PageStore,
        seq_lens: Tensor,
        gather_lens: Tensor | None,
        block_table: Tensor,
    ) -> None:
        """Dequantise entries seq_len − gather_len … seq_len − 1 of every request.

        out: bf16[B, M, 512]; seq_lens, gather_lens: int32[B], None for all entries;
        block_table: int32[B, W].
        """


def paged_gathers(gather: PagedGather) -> dict[str, Operation]:
    """``gather_all`` and ``gather_window`` out of a package's gather."""

    def gather_all(
        store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
    ) -> None:
        out.zero_()
        gather(out, store, lengths.int(), None, table[slots])

    def gather_window(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
        size = ring.layout.entries
        # A ring is a request whose blocks are all the same one: two of them hold any window.
        turned = size + tokens % size
        length = tokens.where(tokens < size, turned)
        gathered = tokens.clamp(max=out.shape[1])
        out.zero_()
        blocks = slots.int()[:, None].repeat(1, 2)
        gather(out, ring, length.int(), gathered.int(), blocks)

    return {"gather_all": gather_all, "gather_window": gather_window}


def installed(packages: Iterable[str]) -> str:
    """The first of several packages that is installed, or the first."""
    names = list(packages)
    return next((name for name in names if find_spec(name)), names[0])


def find_function(
    peer: str, package: str, places: Sequence[str], *, distribution: str | None = None
) -> Callable[..., Any]:
    """Import the first of several places that a package has.

    Args:
        peer: Name of the backend, for errors.
        package: Name of the package, as in ``import``.
        places: ``module:function``, newest first.
        distribution: Name as in ``pip install``, where it is another.

    Raises:
        PeerUnavailable: The package is not installed, cannot be imported, or has none of them.
    """
    if find_spec(package) is None:
        raise PeerUnavailable(
            f"backend {peer} needs the package {package}, which is not installed: "
            f"pip install {distribution or package}."
        )
    for place in places:
        module, _, function = place.partition(":")
        found = getattr(_import_if_there(peer, package, module), function, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    version = version_of(distribution or package) or "as installed"
    raise PeerUnavailable(
        f"backend {peer}: {package} {version} has no {' and no '.join(places)}: install a version "
        "that has one."
    )


def version_of(package: str) -> str | None:
    """Version of an installed distribution, where there is one of that name."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_missing(module: str, error: Exception) -> bool:
    """Whether importing failed because there is no such module, and not inside of it."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    return f"{module}.".startswith(f"{error.name}.")


def _import_if_there(peer: str, package: str, module: str) -> Any:
    """Import a module; None where the package has none of that name."""
    try:
        return import_module(module)
    except Exception as error:
        if is_missing(module, error):
            return None
        raise PeerUnavailable(
            f"backend {peer}: {package} {version_of(package) or 'as installed'} cannot be "
            f"imported here ({type(error).__name__}: {error})."
        ) from error
