"""The backends by name."""

from importlib import import_module
from typing import cast

from dsv4kv.errors import ConfigError
from dsv4kv.ops.contract import Backend

BACKENDS = {
    "reference": "dsv4kv.ops.reference",
    "cpu": "dsv4kv.ops.cpu",
    "cuda": "dsv4kv.ops.cuda",
}


def load_backend(name: str) -> Backend:
    """Import a backend; raises ``ConfigError`` naming the choices."""
    if name not in BACKENDS:
        raise ConfigError(f"no backend {name!r}: choose {', '.join(BACKENDS)}.")
    return cast(Backend, import_module(BACKENDS[name]))
