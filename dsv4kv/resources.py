"""Files shipped with the package: ``configs/``, ``kernels/`` and ``results/sass/``.

They lie beside the package in a source tree and inside it in an installed wheel.
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
