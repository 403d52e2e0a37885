"""The backends by name: our own, other packages', and what users bring."""

from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any, cast

from dsv4kv.choices import BACKENDS, PEERS, choose, listed
from dsv4kv.errors import ConfigError, VerificationError
from dsv4kv.ops.foreign import GROUP, Function, describe_raised, load_foreign
from dsv4kv.ops.spec import OPERATIONS, Backend, Choice, write_in_turn
from dsv4kv.ops.storage import Entries, PageStore

_PIECES = ("window_insert", "state_append", "flush")
"""The operations that ``step_write`` fuses."""


@dataclass(frozen=True)
class ResolvedBackend:
    """A backend and where its operations come from."""

    name: str  # as it was asked for
    backend: Backend  # every operation; those that are not foreign are the base backend's
    foreign: tuple[str, ...] = ()  # operations that come from elsewhere
    version: str | None = None  # of the package they come from, where known
    # entry formats the foreign operations take; None takes all. On pages of other formats the base
    # backend works
    formats: tuple[str, ...] | None = None
    # of the operations that have several and are not foreign
    variants: Choice = field(default_factory=dict)

    def serves(self, operation: str, format_name: str | None) -> bool:
        """Whether an operation is foreign on pages of a format; None for no pages."""
        takes = self.formats is None or format_name is None or format_name in self.formats
        return operation in self.foreign and takes


def load_backend(name: str) -> Backend:
    """Import one of our own backends; raises ``ConfigError`` naming the choices."""
    return cast(Backend, choose(BACKENDS, name, "a backend of ours").load())


def resolve_backend(name: str, base: str, variants: Choice | None = None) -> ResolvedBackend:
    """Find a backend: our own, a known package, an entry point, or a function by its place.

    ``base`` is our own backend for all operations that ``name`` does not bring, ``variants`` how
    it does them; None where each has one way.

    Raises:
        ConfigError: No such backend, or it cannot be loaded.
        PeerUnavailable: A known package that is not installed or has no such operation.
    """
    variants = variants or {}
    own = load_backend(base)
    functions = {operation: getattr(own, operation) for operation in OPERATIONS}
    for operation in variants.keys() & functions.keys():
        functions[operation] = partial(functions[operation], variant=variants[operation])
    if name == base:
        varied = cast(Backend, SimpleNamespace(**functions)) if variants else own
        return ResolvedBackend(name, varied, variants=variants)
    if name in BACKENDS:
        return ResolvedBackend(name, load_backend(name))
    foreign = PEERS[name].load()() if name in PEERS else load_foreign(name)
    if foreign is None:
        installed = ", ".join(sorted(entry_points(group=GROUP).names))
        raise ConfigError(
            f"no backend {name!r}: choose {listed(BACKENDS | PEERS)}, "
            f"an installed entry point of {GROUP} ({installed or 'there is none'}), "
            "or a function, as my_gather.py:gather_topk or my_package.my_module:my_gather."
        )
    brought = foreign.operations
    left = {key: each for key, each in variants.items() if key not in brought}
    for operation, function in brought.items():
        functions[operation] = partial(
            _call, operation, function, functions[operation], foreign.formats
        )
    if "step_write" not in brought and brought.keys() & set(_PIECES):  # or no step calls them
        functions["step_write"] = partial(write_in_turn, *(functions[each] for each in _PIECES))
        left |= {"step_write": "separate"} if variants else {}
    backend = cast(Backend, SimpleNamespace(**functions))
    return ResolvedBackend(name, backend, tuple(brought), foreign.version, foreign.formats, left)


def _call(
    name: str,
    function: Function,
    other: Function,
    formats: tuple[str, ...] | None,
    **arguments: Any,
) -> None:
    """``function``, by position, on pages of these formats; ``other`` on all others."""
    stores = (each.store if isinstance(each, Entries) else each for each in arguments.values())
    held = {each.layout.format.name for each in stores if isinstance(each, PageStore)}
    if formats is None or held <= set(formats):
        try:
            function(*(arguments[each] for each in OPERATIONS[name].names))
        except Exception:
            raise
        except BaseException as error:  # SystemExit would end this program as if all was well
            raise VerificationError(f"{name} raised {describe_raised(error)}") from error
    else:
        other(**arguments)
