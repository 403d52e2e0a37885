"""Child processes and work in parallel."""

import ctypes
import errno
import gc
import logging
import os
import pickle
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from itertools import count
from pathlib import Path
from threading import Event, Lock, Timer
from typing import IO, Any, ClassVar, TypeVar

from dsv4kv import __version__
from dsv4kv.errors import ConfigError, Dsv4kvError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

OWN_TREE = Path(__file__).resolve().parents[1]  # the folder that this package is in

_PR_SET_PDEATHSIG = 1
# replaces itself by its arguments: what Popen calls after a fork is unsafe where threads are
_ENDING_WITH_PARENT = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGKILL:d}); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def python(*words: str) -> list[str]:
    """Command line of this Python that imports nothing from the current folder."""
    return [sys.executable, "-P", *words]


def with_package(environment: Mapping[str, str], tree: Path = OWN_TREE) -> dict[str, str]:
    """An environment in which ``python("-m", "dsv4kv")`` is the package in ``tree``, safely."""
    others = environment.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(filter(None, [str(tree), *others]))
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def find_program(name: str) -> str | None:
    """Path of a program: of a name, by the absolute entries of ``PATH`` only."""
    if os.sep in name:
        return shutil.which(name)
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, entries)))


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def run_bounded(
    command: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float,
    *,
    stderr: int = subprocess.DEVNULL,
    most_bytes: int = 2**24,
) -> tuple[int, str]:
    """Exit code of a command and what it prints; ``OSError`` where there is no such program.

    Raises ``subprocess.TimeoutExpired`` where it was killed, as it ran longer or printed more than
    ``most_bytes``.
    """
    child, killed = Child(command, stdout=subprocess.PIPE, stderr=stderr, env=env), Event()

    def kill() -> None:
        killed.set()
        child.signal(signal.SIGKILL)

    timer = Timer(timeout_s, kill)
    try:
        timer.start()  # it waits for the thread, which an interrupt meanwhile leaves to us
        assert child.stdout is not None
        with child.stdout as printed:
            output = printed.read(most_bytes + 1)
        if len(output) > most_bytes:
            kill()
        code = child.wait()
    except BaseException:
        kill()
        raise
    finally:
        timer.cancel()
    if killed.is_set():
        raise subprocess.TimeoutExpired(command, timeout_s)
    return code, output.decode(errors="replace")


class Child:
    """A command in a process group of its own, without Ctrl-C; on Linux it ends with us."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start it, with options of ``subprocess.Popen``; ``OSError`` without such a program."""
        program = find_program(command[0])
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such program", command[0])
        wrapper = [sys.executable, "-I", "-S", "-c", _ENDING_WITH_PARENT]
        self._process = subprocess.Popen(
            [*(wrapper if sys.platform == "linux" else []), program, *command[1:]],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            pass_fds=pass_fds,
            process_group=0,
        )
        self.stdin, self.stdout = self._process.stdin, self._process.stdout  # where they are pipes

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code, negative for a signal; raises ``subprocess.TimeoutExpired``."""
        return self._process.wait(timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal to the command and all of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> int:
        """Kill the command and all of its group; returns its exit code."""
        self.signal(signal.SIGKILL)
        return self._process.wait()


class ChildEnded(Exception):
    """The child of ``Confined`` ended during a call; ``code``: its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


_SERVE = f"from {__name__} import serve; serve()"


class Confined:
    """An object of a child process, which all of them share: ``make(*given)`` there.

    What libraries in C and Rust do with odd data, such as ending their process, is done there.
    """

    _child: ClassVar[subprocess.Popen[bytes] | None] = None
    _lock = Lock()
    _numbers = count()

    def __init__(self, make: Callable[..., object], *given: Any) -> None:
        folder = ""
        with suppress(OSError):  # one that was removed
            folder = str(Path.cwd())
        self._made = next(self._numbers), folder, make, given

    def ask(self, method: str, *given: Any, **named: Any) -> Any:
        """Call a method; raises its ``Dsv4kvError`` or ``ValueError``, or ``ChildEnded``."""
        with Confined._lock:
            child = Confined._child = Confined._child or subprocess.Popen(
                python("-c", _SERVE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=with_package(os.environ),
                process_group=0,  # Ctrl-C is for us: it ends with its input
            )
            assert child.stdin is not None
            assert child.stdout is not None
            answered = False
            try:
                with suppress(BrokenPipeError, EOFError):
                    pickle.dump((self._made, method, given, named), child.stdin, protocol=5)
                    child.stdin.flush()
                    error, found = pickle.load(child.stdout)
                    answered = True
            finally:
                if not answered:  # it has ended, or we were interrupted: an answer would come late
                    Confined._child = None
                    child.kill()
                    child.communicate()
        if not answered:
            raise ChildEnded(child.returncode)
        if error:
            raise error
        return found


def serve() -> None:
    """Make objects and call them, by requests on standard input, until that ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an encoder prints
    known: dict[int, object] = {}
    with suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):  # we were killed
        while True:
            (number, folder, make, given), method, rest, named = pickle.load(sys.stdin.buffer)
            error: Exception | None = None
            found = None
            try:
                if folder:
                    os.chdir(folder)
                known[number] = known.get(number) or make(*given)
                found = getattr(known[number], method)(*rest, **named)
            except (Dsv4kvError, ValueError) as refusal:
                error = refusal
            except Exception as other:
                error = RuntimeError(f"{type(other).__name__}: {other}")
            pickle.dump((error, found), answers, protocol=5)
            answers.flush()


@contextmanager
def bounded_memory(most: int) -> Iterator[None]:
    """Let this process take ``most`` bytes more than now, on Linux; elsewhere any number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = Path("/proc/self/statm")
    if pages.exists():
        held = int(pages.read_text().split()[0]) * resource.getpagesize()
        limits = [held + most, *(each for each in (soft, hard) if each >= 0)]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def without_stderr() -> Iterator[None]:
    """Silence standard error, where libraries write before they end their process."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_parallel(
    work: Callable[[ItemT], ResultT],
    items: Iterable[ItemT],
    jobs: int | None,
    ray: str | None = None,
    *,
    in_order: bool = False,
) -> Generator[tuple[ItemT, ResultT]]:
    """Yield every item with its result, in order or as soon as that is there.

    Of ``items``, twice as many as processes are taken ahead. ``jobs``: processes here, or of the
    Ray cluster at the address ``ray``, whose workers need this version of the package and the
    files of this working folder; None takes one for each CPU. Raises what ``work`` does,
    ``Dsv4kvError`` where a worker was killed, and ``ConfigError`` without Ray or a cluster.
    """
    # joblib imports numpy and pools, which only commands that work in parallel pay for
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed, parallel_config

    if ray is None:
        backend, lost = "loky", BrokenProcessPool
        task = partial(_run, work, None)
        begin = {"initializer": begin_worker, "initargs": (os.getpid(),)}
    else:
        backend, lost = _connect(ray)
        task = partial(_run, work, (str(Path.cwd()), __version__))
        begin = {}
    count = -1 if jobs is None else jobs
    if jobs is not None and isinstance(items, Sized):
        count = min(jobs, len(items) or 1)
    try:
        with parallel_config(backend=backend, n_jobs=count, **begin):
            order = "generator" if in_order else "generator_unordered"
            parallel = Parallel(return_as=order, batch_size=1, mmap_mode="c")
            yield from parallel(delayed(task)(item) for item in items)
    except lost as error:
        reason = str(error).strip().partition("\n")[0]
        raise Dsv4kvError(
            f"a process that worked on this was killed, as systems do where memory runs out "
            f"({reason}): give it fewer processes."
        ) from None
    finally:
        if ray is not None:
            sys.modules["ray"].shutdown()


def begin_worker(parent: int) -> None:
    """Begin a worker process: it ends with ``parent``, and ignores Ctrl-C, which is for that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(work: Callable[[Any], Any], asked: tuple[str, str] | None, item: Any) -> tuple[Any, Any]:
    """``asked``: the working folder and version of a run whose workers are on other machines."""
    if asked and asked[1] != __version__:
        raise RuntimeError(f"dsv4kv is {asked[1]} where it was asked, {__version__} here")
    if asked:
        os.chdir(asked[0])
    return item, work(item)


def _connect(address: str) -> tuple[Any, Any]:
    """Joblib's backend for a Ray cluster, and the error of a lost worker."""
    try:
        import ray
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError:
        raise ConfigError(
            f"--ray {address}: Ray is not installed: pip install 'dsv4kv[ray]'."
        ) from None
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": with_package(os.environ)["PYTHONPATH"]}},
        )
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"--ray {address}: no cluster answers there ({reason}): start one with `ray start "
            "--head`, and give HOST:PORT or auto."
        ) from None
    backend = RayBackend()
    backend.supports_return_generator = True  # results come one by one, and are kept so
    return backend, ray.exceptions.RayError


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the search for cycles while millions of objects without any come and go."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
