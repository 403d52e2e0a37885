"""One piece of work after the other: in this process, in several, or on a Ray cluster.

Each of these maps a function over items and yields an item with its result as soon as that is
there. An item is asked for when somebody is free to take it, so whoever makes the items knows
which are under way. The function is handed to a worker once and keeps what it has learned there.

Workers are processes with a pipe of their own: if one is killed, it is known which item it had,
and the others go on. ``concurrent.futures`` would lose them all.
"""

import multiprocessing
import os
import secrets
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from dsv4kv import __version__
from dsv4kv.errors import ConfigError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Lost:
    """An item whose worker ended before its result was there: ``why``, as a clause."""

    why: str


def map_here(
    work: Callable[[ItemT], ResultT], items: Iterable[ItemT]
) -> Generator[tuple[ItemT, ResultT | Lost]]:
    """Do everything in this process."""
    return ((item, work(item)) for item in items)


def map_processes(
    work: Callable[[ItemT], ResultT], items: Iterable[ItemT], count: int
) -> Generator[tuple[ItemT, ResultT | Lost]]:
    """Keep ``count`` fresh processes busy; they do not outlive the iterator, or this process.

    What the function raises is raised here, its traceback as a note.
    """
    left, busy = iter(items), list[_Process[ItemT, ResultT]]()
    idle = list[_Process[ItemT, ResultT]]()
    try:
        while True:
            for item in left:
                worker = idle.pop() if idle else _Process(work)
                busy.append(worker)
                worker.begin(item)
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


class _Process(Generic[ItemT, ResultT]):
    """A process that does one item at a time."""

    def __init__(self, work: Callable[[ItemT], ResultT]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self._process.start()
        theirs.close()  # now the pipe ends with the process
        self._item: ItemT

    def begin(self, item: ItemT) -> None:
        self._item = item
        with suppress(BrokenPipeError):  # killed while it was idle, as reading will say
            self.pipe.send(item)

    def end_item(self) -> tuple[ItemT, ResultT | Lost]:
        try:
            result: ResultT | Exception = self.pipe.recv()
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


def _how_ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed by SIGKILL, as systems do where memory runs out"
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"its process ended with {name}"


def _serve(pipe: "Connection[Any, Any]", work: Callable[[Any], Any]) -> None:
    """Do what comes through the pipe until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
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
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"--ray {address}: no cluster answers there ({reason}): start one with `ray start "
            "--head`, and give HOST:PORT or auto."
        ) from None
    return ray


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
