"""Finding a function of an installed package whose modules move from version to version."""

from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from dsv4kv.errors import PeerUnavailable


def find_function(peer: str, package: str, places: Sequence[str]) -> Callable[..., Any]:
    """Import the first of several places that a package has.

    Args:
        peer: Name of the backend, for errors.
        package: Name of the package, as in ``import`` and as in ``pip install``.
        places: ``module:function``, newest first.

    Raises:
        PeerUnavailable: The package is not installed, cannot be imported, or has none of them.
    """
    if find_spec(package) is None:
        raise PeerUnavailable(
            f"backend {peer} needs the package {package}, which is not installed: "
            f"pip install {package}."
        )
    for place in places:
        module, _, function = place.partition(":")
        found = getattr(_import_if_there(peer, package, module), function, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    raise PeerUnavailable(
        f"backend {peer}: {package} {version_of(package) or 'as installed'} has no "
        f"{' and no '.join(places)}: install a version that has one."
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
