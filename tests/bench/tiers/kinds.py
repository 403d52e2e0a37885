"""A store of every kind, and objects for it."""

import atexit
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from dsv4kv.bench.tiers.redis_store import RedisStore
from dsv4kv.bench.tiers.store import Bytes, FileStore, Namespace, Store, open_store
from dsv4kv.choices import STORES
from dsv4kv.files import temporary_folder
from dsv4kv.processes import Child

FLASH = Namespace("deepseek-ai/DeepSeek-V4-Flash", "0731", {"entries": "fp8_ds_mla"})
PRO = replace(FLASH, model="deepseek-ai/DeepSeek-V4-Pro")
POISON = 0xA5
SIZES = (0, 1, 31, 32, 33, 64, 40_960)


NEEDS_REDIS = pytest.mark.skipif(
    not (find_spec("redis") and which("redis-server")),
    reason="no redis-server or redis-py here: apt-get install redis-server, pip install redis",
)
_NEEDS = {"redis": NEEDS_REDIS}
_PARAMETERS = {kind: pytest.param(kind, marks=_NEEDS.get(kind, ())) for kind in STORES}
KINDS = pytest.mark.parametrize("kind", _PARAMETERS.values())
SEALED = pytest.mark.parametrize("kind", [_PARAMETERS[kind] for kind in ("file", "redis")])
PATIENCE_S = 120.0
_running = ExitStack()
atexit.register(_running.close)


@contextmanager
def opened(kind: str, folder: Path, namespace: Namespace = FLASH) -> Iterator[Store]:
    """A store of this kind, whatever was put into it there before."""
    place = {"memory": "1GiB", "file": str(folder)}.get(kind) or shared_redis()
    if kind == "redis":  # one server for all folders
        namespace = replace(namespace, layout={**namespace.layout, "folder": str(folder)})
    with closing(open_store(f"{kind}:{place}", namespace)) as store:
        yield store


@dataclass
class Sealed:
    """An object's sealed bytes where a store keeps them."""

    read: Callable[[], bytes]
    write: Callable[[bytes], object]


def sealed(store: Store, name: str) -> Sealed:
    if isinstance(store, FileStore):
        path = next(store.folder.glob(f"*/{name.replace('/', '~')}.kv"))
        return Sealed(path.read_bytes, path.write_bytes)
    assert isinstance(store, RedisStore)
    key = store._prefix + name
    return Sealed(partial(store._client.get, key), partial(store._client.set, key))


@cache
def shared_redis() -> str:
    """The URL of a server that lives as long as this process."""
    return _running.enter_context(redis_server())


@contextmanager
def redis_server(place: Path | None = None) -> Iterator[str]:
    """The URL of a server that keeps nothing after the block."""
    with ExitStack() as stack:
        place = place or stack.enter_context(temporary_folder("dsv4kv-redis-")) / "socket"
        options = ("--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", str(place))
        server = Child(["redis-server", *options])
        stack.callback(server.kill)
        end = time.monotonic() + PATIENCE_S
        while not is_listening(place):
            assert time.monotonic() < end, "redis-server does not start"
            time.sleep(0.01)
        yield f"unix://{place}"


def is_listening(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asked:
        return asked.connect_ex(str(place)) == 0


def content(number: int, size: int) -> Bytes:
    """uint8[size] that is another's for every number, where there is a byte to tell."""
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def poisoned(size: int) -> Bytes:
    """A destination that holds what no object does."""
    return np.full(size, POISON, np.uint8)
