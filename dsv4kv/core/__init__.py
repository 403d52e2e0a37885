"""Inner loops of replays: block pools, prefix caches, the scheduler, one step at a time.

Wheels carry them compiled by mypyc. The same source runs interpreted where they do not, where a
compiled module is older than its source, and with ``DSV4KV_CORE=python``; with
``DSV4KV_CORE=compiled`` anything else is an error.
"""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

_FOLDER = Path(__file__).parent
_WANTED = os.environ.get("DSV4KV_CORE", "")


def _is_compiled() -> bool:
    pairs = [(_FOLDER / f"pool{suffix}", _FOLDER / "pool.py") for suffix in EXTENSION_SUFFIXES]
    libraries = [library for library, _ in pairs if library.exists()]
    sources = [path.stat().st_mtime for path in _FOLDER.glob("[!_]*.py")]
    return bool(libraries) and libraries[0].stat().st_mtime >= max(sources)


COMPILED = _WANTED != "python" and _is_compiled()
"""Whether the modules of this package are compiled."""

if not COMPILED:
    if _WANTED == "compiled":
        raise ImportError(
            "DSV4KV_CORE is compiled, and dsv4kv.core is not: install a wheel of dsv4kv, or run "
            "`make core` in a checkout."
        )
    finder = FileFinder(str(_FOLDER), (SourceFileLoader, [".py"]))
    sys.path_importer_cache[str(_FOLDER)] = finder
