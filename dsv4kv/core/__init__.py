"""Inner loops of replays: block pools, prefix caches, the scheduler, one step at a time.

Wheels carry them compiled by mypyc. The same source runs interpreted where they do not, where it
is not the source that was compiled, and with ``DSV4KV_CORE=python``; with ``DSV4KV_CORE=compiled``
anything else is an error.
"""

import os
import sys
from hashlib import sha256
from importlib import import_module
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path

from dsv4kv.errors import ConfigError

_FOLDER = Path(__file__).parent
_WANTED = os.environ.get("DSV4KV_CORE", "")
if _WANTED not in ("", "compiled", "python"):
    raise ConfigError(f"DSV4KV_CORE is {_WANTED!r}: set it to compiled or python, or unset it.")


def _is_compiled() -> bool:
    try:
        compiled = import_module(f"{__name__}.compiled")  # hatch_build.py adds it
    except ImportError:
        return False
    source = b"".join(path.read_bytes() for path in sorted(_FOLDER.glob("[!_]*.py")))
    return bool(sha256(source).hexdigest() == compiled.SOURCE)


COMPILED = _WANTED != "python" and _is_compiled()
"""Whether the modules of this package are compiled."""

if not COMPILED:
    if _WANTED == "compiled":
        raise ConfigError(
            "DSV4KV_CORE is compiled, and dsv4kv.core is not, or from another source: install a "
            "wheel of dsv4kv, run `make core` in a checkout, or unset DSV4KV_CORE."
        )
    finder = FileFinder(str(_FOLDER), (SourceFileLoader, [".py"]))
    sys.path_importer_cache[str(_FOLDER)] = finder
