"""A store of every kind, and objects for it."""

import atexit
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from dsv4kv.choices import STORES
from dsv4kv.files import temporary_folder
from dsv4kv.processes import Child
from dsv4kv.tiers.stores.contract import Bytes, Store
from dsv4kv.tiers.stores.namespace import Namespace
from dsv4kv.tiers.stores.place import open_store
from tests.ports import free_port

FLASH = Namespace("deepseek-ai/DeepSeek-V4-Flash", "0731", {"entries": "fp8_ds_mla"})
POISON = 0xA5
# around a seal's 32 bytes and the 4,096 that O_DIRECT goes by
SIZES = (0, 1, 31, 32, 4063, 4064, 4065, 4096, 40_960)


def has_mooncake() -> bool:
    """Whether the package is here with all libraries that it needs."""
    try:
        return find_spec("mooncake") is not None and bool(import_module("mooncake.store"))
    except ImportError:
        return False


NEEDS_REDIS = pytest.mark.skipif(
    not (find_spec("redis") and which("redis-server")),
    reason="no redis-server or redis-py here: apt-get install redis-server, pip install redis",
)
NEEDS_MOONCAKE = pytest.mark.skipif(
    not has_mooncake(),
    reason="mooncake is not here: pip install mooncake-transfer-engine-non-cuda, and libibverbs",
)
_NEEDS = {"redis": NEEDS_REDIS, "mooncake": NEEDS_MOONCAKE}
KINDS = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[_NEEDS[kind]] if kind in _NEEDS else []) for kind in STORES]
)
PATIENCE_S = 120.0
_running = ExitStack()
atexit.register(_running.close)


@contextmanager
def opened(kind: str, folder: Path, namespace: Namespace = FLASH) -> Iterator[Store]:
    """A store of this kind, whatever was put into it there before."""
    shared = {"redis": shared_redis, "mooncake": shared_mooncake}
    place = {"memory": "1GiB", "file": str(folder)}.get(kind) or shared[kind]()
    if kind in shared:  # one server for all folders
        namespace = replace(namespace, layout={**namespace.layout, "folder": str(folder)})
    with closing(open_store(f"{kind}:{place}", namespace)) as store:
        yield store


@cache
def shared_redis() -> str:
    """The URL of a server that lives as long as this process."""
    return _running.enter_context(redis_server())


@cache
def shared_mooncake() -> str:
    """The address of a master that lives as long as this process."""
    return _running.enter_context(mooncake_server())


LENDING = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store, lent, own = MooncakeDistributedStore(), 1 << 28, 1 << 24
assert not store.setup("127.0.0.1", "P2PHANDSHAKE", lent, own, "tcp", "", sys.argv[1])
print("ready", flush=True)
time.sleep(1e6)
"""


@contextmanager
def mooncake_server(port: int | None = None) -> Iterator[str]:
    """The address of a master, and of a member of its store that lends memory."""
    at = f"127.0.0.1:{port or free_port()}"
    programs = Path(import_module("mooncake").__path__[0])
    options = ("-rpc_address=127.0.0.1", f"-rpc_port={at.partition(':')[2]}", "-metrics_port=0")
    quiet = os.environ | {"GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR"}
    with ExitStack() as stack:
        program = programs / "mooncake_master"
        program.chmod(0o755)  # wheels of zip files forget it
        master = Child([str(program), *options], env=quiet)
        stack.callback(master.kill)
        wait_for(at)
        reading, writing = os.pipe()
        member = Child([sys.executable, "-c", LENDING, at], stdout=writing, env=quiet)
        stack.callback(member.kill)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            assert any(b"ready" in line for line in said), "no member of the store"
        yield at


def wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    end = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return
        assert time.monotonic() < end, "nobody listens"
        time.sleep(0.02)


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
