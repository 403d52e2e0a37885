"""Files shipped with the package: ``configs/``, ``kernels/`` and ``results/sass/``, and its cache.

They are next to the package in a source tree and inside it in an installed wheel.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """Return the shipped folder of that name, wherever the package runs from."""
    installed = _PACKAGE / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def shipped_names(kind: str) -> list[str]:
    """Names of the YAML files in a folder of ``configs/``, such as ``models``, sorted."""
    return sorted(path.stem for path in (shipped("configs") / kind).glob("*.yaml"))


def user_cache() -> Path | None:
    """The user's folder for what can be made again; None in a container's user without a home."""
    from platformdirs import user_cache_path

    try:
        folder = user_cache_path("dsv4kv", appauthor=False)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None  # older versions leave the "~" of no home


def user_calibrations() -> Path | None:
    """The user's folder of the clock's calibrations; None without a home."""
    from platformdirs import user_data_path

    try:
        folder = user_data_path("dsv4kv", appauthor=False) / "calibrations"
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None
