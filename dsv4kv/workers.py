"""One piece of work after the other: in this process, in several, or on a Ray cluster.

Each of these maps a function over items and yields an item with its result as soon as that is
there. An item is asked for when somebody is free to take it, so whoever makes the items knows
which are under way. The function is handed to a worker once and keeps what it has learned there.

Workers are processes with a pipe of their own: if one is killed, it is known which item it had,
and the others go on. ``concurrent.futures`` would lose them all. What this process has imported
they have, too, where they can be forked; so they are started before it has other threads.
"""

import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dsv4kv import __version__
from dsv4kv.errors import ConfigError
from dsv4kv.processes import OWN_TREE

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Lost:
    """An item whose worker ended before its result was there: ``why``, as a clause."""

    why: str


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_here(
    work: Callable[[ItemT], ResultT], items: Iterable[ItemT]
) -> Generator[tuple[ItemT, ResultT | Lost]]:
    """Do everything in this process."""
    return ((item, work(item)) for item in items)


class Crew:
    """Processes that wait for work, as many as are asked for; they do not outlive this one."""

    def __init__(self, count: int) -> None:
        """Start them."""
        self._idle: list[_Process] = [_Process() for _ in range(count)]

    def take(self) -> "_Process":
        """One that is idle, or a new one in its place."""
        return self._idle.pop() if self._idle else _Process()

    def dismiss(self) -> None:
        """End those that nobody has taken."""
        while self._idle:
            self._idle.pop().kill()


def map_processes(
    work: Callable[[ItemT], ResultT],
    items: Iterable[ItemT],
    count: int,
    crew: Crew | None = None,
) -> Generator[tuple[ItemT, ResultT | Lost]]:
    """Keep ``count`` processes busy; they do not outlive the iterator, or this process.

    They are of ``crew``, as far as it goes. What the function raises is raised here, its traceback
    as a note.
    """
    crew = crew or Crew(0)
    left, busy, idle = iter(items), list[_Process](), list[_Process]()
    try:
        while True:
            for item in left:
                worker = idle.pop() if idle else crew.take()
                busy.append(worker)
                worker.begin(work, item)
                if len(busy) == count:
                    break
            if not busy:
                return
            ready = wait([worker.pipe for worker in busy])
            for worker in [worker for worker in busy if worker.pipe in ready]:
                busy.remove(worker)
                item, result = worker.end_item()
                if not isinstance(result, Lost):
                    idle.append(worker)
                yield item, result
    finally:
        for worker in (*busy, *idle):
            worker.kill()


def map_jobs(
    work: Callable[[ItemT], ResultT], items: Sequence[ItemT], jobs: int
) -> Generator[tuple[ItemT, ResultT | Lost]]:
    """Do everything in ``jobs`` processes, of which this is the one where one is enough."""
    if min(jobs, len(items)) <= 1:
        return map_here(work, items)
    return map_processes(work, items, min(jobs, len(items)))


class _Process:
    """A process that does one item at a time, all by one function."""

    def __init__(self) -> None:
        method = "fork" if can_fork() else "spawn"
        context = cast("SpawnContext", multiprocessing.get_context(method))
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # now the pipe ends with the process
        self._item: Any = None
        self._has_work = False

    def begin(self, work: Callable[[Any], Any], item: Any) -> None:
        self._item = item
        with suppress(BrokenPipeError):  # killed while it was idle, as reading will say
            if not self._has_work:
                self.pipe.send(work)
                self._has_work = True
            self.pipe.send(item)

    def end_item(self) -> tuple[Any, Any]:
        try:
            result = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return self._item, Lost(_how_ended(self._process.exitcode or 0))
        if isinstance(result, Exception):
            raise result
        return self._item, result

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def can_fork() -> bool:
    """Whether a fork loses nothing: threads would be missing there, and their locks be held."""
    alone = threading.active_count() == 1 and "torch" not in sys.modules
    return alone and sys.platform == "linux"


def _how_ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed by SIGKILL, as systems do where memory runs out"
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"its process ended with {name}"


def _serve(pipe: "Connection[Any, Any]") -> None:
    """Do what comes through the pipe until it ends: first how, then what."""
    work: Callable[[Any], Any] | None = None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        if work is None:
            work = item
            continue
        try:
            result = work(item)
        except Exception as error:
            error.add_note(traceback.format_exc())
            result = error  # raised in the parent
        pipe.send(result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def map_ray(
    work: Callable[[ItemT], ResultT],
    items: Iterable[ItemT],
    address: str,
    count: int | None = None,
) -> Generator[tuple[ItemT, ResultT | Lost]]:
    """Do ``count`` items at once on a Ray cluster; None takes as many as it has CPUs.

    Its workers need this version of the package, and the files of this working folder.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at ``address``.
    """
    ray = _connect(address)
    try:
        run = ray.remote(num_cpus=1, max_retries=1)(_run_held)
        held = (secrets.token_hex(8), str(Path.cwd()), __version__, [ray.put(work)])
        most = count or max(1, int(ray.cluster_resources().get("CPU", 1)))
        left, busy = iter(items), dict[Any, ItemT]()
        while True:
            for item in left:
                busy[run.remote(*held, item)] = item
                if len(busy) == most:
                    break
            if not busy:
                return
            (done,), _ = ray.wait(list(busy), num_returns=1)
            yield busy.pop(done), _result_of(ray, done)
    finally:
        ray.shutdown()


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(
            f"--ray {address}: Ray is not installed: pip install 'dsv4kv[ray]'."
        ) from None
    try:
        _knock(address)
        with chdir(OWN_TREE):  # Ray puts the current folder on the path of its workers
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"--ray {address}: no cluster answers there ({reason}): start one with `ray start "
            "--head`, and give HOST:PORT or auto."
        ) from None
    return ray


def _knock(address: str) -> None:
    """Raise OSError where nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _result_of(ray: Any, done: Any) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Lost(f"its Ray task ended: {lines[-1] if lines else type(error).__name__}")


_HELD: dict[str, Callable[[Any], Any]] = {}  # what a process of a cluster works on


def _run_held(token: str, folder: str, version: str, held: list[Any], item: Any) -> Any:
    """Do an item on a cluster; a process is handed the function with its first item."""
    if token not in _HELD:
        import ray

        if version != __version__:
            raise RuntimeError(f"dsv4kv is {version} where it was asked, {__version__} here")
        os.chdir(folder)
        _HELD.clear()
        _HELD[token] = ray.get(held[0])
    return _HELD[token](item)
