"""A profile from the plan to the record: decode steps of ``bench`` that a profiler looks at."""
# ruff: noqa: D102, methods of profilers are described by ``Attached``

import gzip
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

import torch

from dsv4kv.bench.device import describe_gpu, find_device, measure_baseline
from dsv4kv.bench.run import describe_cache, make_loop, set_up
from dsv4kv.bench.serve.executor import Recorder, StepExecutor, StepTokens, name_of
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import LoadedConfig
from dsv4kv.errors import ConfigError, ProfileError
from dsv4kv.files import make_folder, replacing, temporary_folder
from dsv4kv.processes import python, without_stderr
from dsv4kv.profile import launch
from dsv4kv.profile.read import read_profile, reader
from dsv4kv.profile.table import build_table, shipped_rules
from dsv4kv.profile.trace import STEP
from dsv4kv.runs.parts import Profile
from dsv4kv.runs.points import begin_record, end_record, make_case
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.runs.store import dumps, load_record, new_run_id

Tool = Literal["nsys", "ncu", "torch"]
_STEPS = {"nsys": 10, "torch": 10, "ncu": 1}
_PROFILED_S = 600.0  # then a profiler is ended
_HOST_NAME = re.compile(r'"host_name":\s*"[^"]*"')
_HEAD_CHARACTERS = 1 << 16
RUN, OUTPUT = "run.json", "step"
"""In a profile's folder: the profiled program's record, and the profiler's file less suffix."""


@dataclass(frozen=True)
class Plan:
    """What will be profiled, and how."""

    loaded: LoadedConfig  # the configuration, overrides applied
    overrides: Sequence[str]  # ``a.b=c`` options, in effect
    argv: Sequence[str]  # the command line
    tool: Tool  # who profiles
    why: str  # why this one
    steps: int | None  # decode steps to look at; None takes the tool's own number
    folder: Path  # where the profiler's files go
    kernels: str | None  # kernels that ncu is to look at, by a regular expression; None is all

    @property
    def num_steps(self) -> int:
        """Decode steps to look at."""
        return self.steps or _STEPS[self.tool]


def choose_tool(wanted: Tool | None, device: str) -> tuple[Tool, str]:
    """The profiler to use, and why; ``device`` is ``auto``, ``cpu`` or ``cuda``."""
    if wanted is not None:
        return wanted, f"asked for with --{wanted}"
    nsys = launch.find_profiler("nsys")
    if find_device(device) is None:
        return "torch", "torch.profiler, since there is no GPU"
    if nsys is None:
        return "torch", "torch.profiler, since nsys is not installed"
    return "nsys", f"nsys, since it is installed ({nsys})"


def name_folder(loaded: LoadedConfig, out: Path) -> Path:
    """A new folder for the files of one profile; it is named as the run."""
    return out / new_run_id(f"profile-{loaded.config.name}", datetime.now(UTC))


def make_command(plan: Plan, *, here: bool = True) -> launch.Command:
    """The profiler's command line; ``ProfileError`` where it is not installed ``here``."""
    program = python("-m", *_words(plan), "--child", str(plan.folder / RUN))
    output = plan.folder / OUTPUT
    if plan.tool == "torch":
        raise ConfigError(
            "torch.profiler runs inside the process and has no command line: add --nsys or --ncu."
        )
    path = launch.require_tool(plan.tool) if here else launch.find_profiler(plan.tool) or plan.tool
    if plan.tool == "nsys":
        return launch.nsys_profile(path, output, program)
    if here:
        reader()  # or nobody could read the report
    return launch.ncu_profile(path, output, program, plan.kernels)


def reproduce(plan: Plan) -> str:
    """The command line that profiles so again."""
    return shlex.join(_words(plan, f"--{plan.tool}"))


def _words(plan: Plan, *more: str) -> list[str]:
    words = ["dsv4kv", "profile", plan.loaded.source, *more]
    words += [word for each in plan.overrides for word in ("--set", each)]
    return [*words, "--steps", str(plan.num_steps)]


class Attached(Protocol):
    """A profiler, which looks from ``start`` to ``stop``.

    Both wait for all work launched before; ``mark`` makes a range of what is launched inside.
    """

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def mark(self, name: str) -> AbstractContextManager[object]: ...


class CudaProfiler(Attached):
    """nsys or ncu around this process, by cudaProfilerStart and Stop and NVTX ranges."""

    def start(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]

    def mark(self, name: str) -> AbstractContextManager[object]:
        return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext()


class Kineto(Attached):
    """torch.profiler in this process; begun after graphs are captured, or it misses kernels."""

    def __init__(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities)

    def start(self) -> None:
        with without_stderr():
            self._profile.start()

    def stop(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        with without_stderr():
            self._profile.stop()

    def mark(self, name: str) -> AbstractContextManager[object]:
        return torch.profiler.record_function(name)

    def save(self, path: Path) -> None:
        """Write the Chrome trace, packed, without the host's name; can be done once."""
        with temporary_folder("dsv4kv-trace-") as folder:
            raw = folder / "trace.json"
            self._profile.export_chrome_trace(str(raw))
            with (
                raw.open(encoding="utf-8") as source,
                gzip.open(path, "wt", encoding="utf-8") as out,
            ):
                out.write(_HOST_NAME.sub('"host_name": ""', source.read(_HEAD_CHARACTERS)))
                shutil.copyfileobj(source, out)


_KINETO_TRACE = "step.trace.json.gz"


def be_profiled(plan: Plan, target: Path) -> None:
    """Be the profiled program: run the workload and write what it did to ``target``."""
    make_folder(target.parent)
    with _run_in_process(plan, CudaProfiler()) as record, replacing(target) as file:
        file.write(dumps(record).encode())


def run_profile(plan: Plan) -> RunRecord:
    """Profile a workload, and read what the profiler found; ``ProfileError`` where it fails."""
    command = launch.Command([], []) if plan.tool == "torch" else make_command(plan)
    make_folder(plan.folder)
    if plan.tool == "torch":
        kineto, trace = Kineto(), plan.folder / _KINETO_TRACE
        with _run_in_process(plan, kineto) as record:
            pass
        kineto.save(trace)
        profiled = launch.Profiled(trace, [trace], [])
        torch = record.environment.versions.get("torch")  # whose profiler comes with it
        version = f"torch {torch}" if torch else None
    else:
        report = (plan.folder / OUTPUT).with_suffix(f".{plan.tool}-rep")
        profiled = launch.run_profiler(command, report, _PROFILED_S)
        if not (record_file := plan.folder / RUN).is_file():
            left = launch.name_files(plan.folder)
            raise ProfileError(f"the profiled program ended before it wrote its record. {left}")
        record, version = load_record(record_file), launch.version_of(command.words[0])
    (case,) = record.cases
    assert case.profile is not None
    table = build_table(read_profile(profiled.file), shipped_rules(), case.profile.useful_bytes)
    more = {"notes": [*profiled.notes, *table.notes], "tool_version": version}
    profile = case.profile.model_copy(
        update={
            "why": plan.why,
            "command": command.words,
            "files": [str(path) for path in profiled.files],
            "table": table.model_copy(update=more),
        }
    )
    done = case.model_copy(update={"profile": profile})
    return record.model_copy(
        update={"cases": [done], "argv": list(plan.argv), "reproduce": reproduce(plan)}
    )


@contextmanager
def _run_in_process(plan: Plan, profiler: Attached) -> Iterator[RunRecord]:
    config = plan.loaded.config
    begun = begin_record(
        plan.loaded,
        config.workload.trace,
        argv=plan.argv,
        reproduce=reproduce(plan),
        gpu=describe_gpu(config.device),
    )
    begun["run_id"], memory_bytes = plan.folder.resolve().name, begun["environment"].memory_bytes
    with run_profiled(config, profiler, plan.num_steps, memory_bytes) as case:
        yield end_record(begun, [case])


class Enough(Exception):
    """All steps that were to be profiled are done."""


@dataclass(kw_only=True)
class ProfiledExecutor(StepExecutor):
    """An executor whose decode steps a profiler looks at, as soon as it is time."""

    profiler: Attached  # looks
    steps: int  # decode steps to look at
    requests: int  # begin with the first step of so many requests
    warmup: int  # decode steps of so many requests to let pass before
    step_requests: list[int] = field(default_factory=list)  # requests of every step looked at
    useful_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes that operations had to move, by name."""
    started: bool = False  # whether the profiler is on
    _active: bool = False
    _full: int = 0

    def __post_init__(self) -> None:
        self.mark = lambda name: self.profiler.mark(name) if self._active else nullcontext()

    def decode(self, step: StepTokens) -> None:
        """Look at a step if it is time, and count the bytes that it must move.

        Raises ``Enough`` after the last.
        """
        requests = step.batch.num_requests
        self._full += requests == self.requests
        if self._full <= self.warmup:
            super().decode(step)
        elif not self.started:
            self.started = True
            self.profiler.start()
            super().decode(step)  # not looked at: a profiler takes its time to begin
        else:
            self._active = True
            try:
                with self.profiler.mark(STEP):
                    super().decode(step)
                    self._count_bytes(step)
            finally:
                self._active = False
            self.step_requests.append(requests)
            if len(self.step_requests) == self.steps:
                raise Enough

    def _count_bytes(self, step: StepTokens) -> None:
        # on a GPU the kernels on indexer keys and on compressed KV have one name
        batch, on_gpu = step.batch, self.gpu is not None
        work = self.work(batch.tokens_after.numpy(), batch.positions.numpy())
        for layer in self.layers:
            for operation, indexer in self.step_operations(layer):
                entries, moved, _ = work.of(operation, layer.schema, indexer=indexer)
                named = f"{name_of(operation, indexer)} {layer.schema.layer.attn}"
                moved = moved if entries or on_gpu else 0
                self.useful_bytes[operation if on_gpu else named] += moved


@contextmanager
def run_profiled(
    config: BenchConfig, profiler: Attached, steps: int, memory_bytes: int | None = None
) -> Iterator[Case]:
    """Profile ``steps`` decode steps of the maximum number of concurrent requests.

    The profiler stops behind the block, which may end this process. The case has the bytes that
    operations had to move, and no kernel table yet.
    Raises ``ConfigError`` or ``Dsv4kvError``.
    """
    # no checks, which would be profiled, too; and one way of launching, graphs if it may
    way = "graph" if config.workload.decode == "both" else config.workload.decode
    workload = config.workload.model_copy(update={"decode": way})
    measure = config.measure.model_copy(update={"verify_every": 0})
    adapted = config.model_copy(update={"workload": workload, "measure": measure})
    setup = set_up(adapted, memory_bytes)
    if setup.drive is None:
        raise ConfigError("workload.data is none, and so there is nothing to profile: set real.")
    baseline = measure_baseline(setup.device, config.measure.memcpy_bytes)
    recorder, executor = Recorder(), setup.drive.executor
    kept = {each.name: getattr(executor, each.name) for each in fields(executor) if each.init}
    profiled = ProfiledExecutor(
        **kept | {"recorder": recorder},
        profiler=profiler,
        steps=steps,
        requests=config.workload.concurrency,
        warmup=config.measure.warmup_steps,
    )
    loop = make_loop(setup, recorder, profiled)
    with suppress(Enough):
        loop.run()
    if not profiled.step_requests:
        if profiled.started:
            profiler.stop()
        raise ConfigError(
            f"the workload has no more than {profiled.warmup} decode steps of {profiled.requests} "
            "requests, so no steady one to profile: lower workload.concurrency or "
            "measure.warmup_steps, or take a longer workload."
        )
    case = make_case(
        cache=describe_cache(config, setup.plan, setup.manager),
        profile=Profile(
            why="",
            command=[],
            files=[],
            step_requests=profiled.step_requests,
            useful_bytes=dict(profiled.useful_bytes),
            table=None,
        ),
        **baseline,
        **setup.facts(),
    )
    yield case
    profiler.stop()
