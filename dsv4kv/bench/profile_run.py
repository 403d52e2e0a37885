"""A profile from the plan to the record: the run, and what the profiler found."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dsv4kv.bench.device import describe_gpu
from dsv4kv.bench.memory_audit import audit_memory
from dsv4kv.bench.profile_plan import OUTPUT, RUN, Plan, make_command, reproduce
from dsv4kv.bench.profiled import run_profiled
from dsv4kv.errors import ProfileError
from dsv4kv.files import replacing
from dsv4kv.measure.environment import capture_environment
from dsv4kv.measure.profilers.attached import Attached, CudaProfiler, Kineto
from dsv4kv.measure.profilers.classify import shipped_rules
from dsv4kv.measure.profilers.commands import Command, version_of
from dsv4kv.measure.profilers.files import read_profile
from dsv4kv.measure.profilers.sessions import Profiled, name_files, run_ncu, run_nsys
from dsv4kv.report.kernel_table import build_table
from dsv4kv.report.record import Case, Environment, RunRecord
from dsv4kv.report.store import dumps, load_record
from dsv4kv.workload.traces import resolve_trace, trace_sha256

_KINETO_TRACE = "step.trace.json.gz"


def be_profiled(plan: Plan, target: Path) -> None:
    """Be the profiled program: run the workload and write what it did to ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _run_in_process(plan, CudaProfiler(), lambda record: _write(target, dumps(record)))


def run_profile(plan: Plan, *, memory: bool) -> RunRecord:
    """Profile a workload, and read what the profiler found.

    Raises:
        ProfileError: The profiler is missing, fails, hangs, or its file cannot be read.
        Dsv4kvError: The workload cannot run.
    """
    command = Command([], []) if plan.tool == "torch" else make_command(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    audit = audit_memory(plan.loaded.config, plan.folder) if memory else None
    record, profiled = _run_kineto(plan) if plan.tool == "torch" else _run_tool(plan, command)
    (case,) = record.cases
    assert case.profile is not None
    table = build_table(read_profile(profiled.file), shipped_rules(), case.profile.useful_bytes)
    more = {"notes": [*profiled.notes, *table.notes], "tool_version": _version(command, record)}
    profile = case.profile.model_copy(
        update={
            "why": plan.why,
            "command": command.words,
            "files": [str(path) for path in profiled.files],
            "table": table.model_copy(update=more),
            "memory": audit,
        }
    )
    done = case.model_copy(update={"profile": profile})
    return record.model_copy(
        update={"cases": [done], "argv": list(plan.argv), "reproduce": reproduce(plan)}
    )


def _run_kineto(plan: Plan) -> tuple[RunRecord, Profiled]:
    kineto, kept = Kineto(), list[RunRecord]()
    _run_in_process(plan, kineto, kept.append)
    path = plan.folder / _KINETO_TRACE
    kineto.save(path)
    return kept[0], Profiled(path, [path], [])


def _run_tool(plan: Plan, command: Command) -> tuple[RunRecord, Profiled]:
    output, told = plan.folder / OUTPUT, plan.folder / RUN
    if plan.tool == "nsys":
        report = output.with_suffix(".nsys-rep")
        profiled = run_nsys(command.words[0], command, report, plan.timeout_s)
    else:
        profiled = run_ncu(command, output.with_suffix(".ncu-rep"), plan.timeout_s)
    if not told.is_file():
        raise ProfileError(
            f"the profiled program ended before it told what it did. {name_files(plan.folder)}"
        )
    return load_record(told), profiled


def _version(command: Command, record: RunRecord) -> str | None:
    """Version of the profiler: torch's own comes with torch."""
    if command.words:
        return version_of(command.words[0])
    torch = record.environment.versions.get("torch")
    return f"torch {torch}" if torch else None


def _run_in_process(plan: Plan, profiler: Attached, keep: Callable[[RunRecord], None]) -> None:
    started, config = datetime.now(UTC), plan.loaded.config
    environment = Environment(**capture_environment(), gpu=describe_gpu(config.device))

    def keep_case(case: Case) -> None:
        keep(_record(plan, environment, started, case))

    run_profiled(config, profiler, plan.num_steps, keep_case, environment.memory_bytes)


def _record(plan: Plan, environment: Environment, started: datetime, case: Case) -> RunRecord:
    config = plan.loaded.config
    trace = config.workload.trace
    return RunRecord(
        run_id=plan.folder.resolve().name,
        started_utc=started.isoformat(timespec="seconds"),
        ended_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        status="complete",
        argv=list(plan.argv),
        reproduce=reproduce(plan),
        config_source=plan.loaded.source,
        config_sha256=plan.loaded.sha256,
        trace_source=trace,
        trace_sha256=trace_sha256(resolve_trace(trace)) if trace else None,
        seed=config.measure.seed,
        environment=environment,
        cases=[case],
    )


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
