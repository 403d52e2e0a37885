"""``dsv4kv explain``: what a file of a server or of a benchmark shows, whatever file it is."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsv4kv.cli import command
from dsv4kv.cli import options as opt
from dsv4kv.cli.budget import Found, size
from dsv4kv.errors import ConfigError, DoesNotFit, Dsv4kvError, TraceError
from dsv4kv.files import DOCUMENT_BYTES, standard_input, temporary_folder
from dsv4kv.units import format_bytes

if TYPE_CHECKING:
    from dsv4kv.budget.gpus import Gpu
    from dsv4kv.diagnose.faults import Finding as Fault
    from dsv4kv.engines.explain import Explanation
    from dsv4kv.view.table import Part

_GIVEN = (
    "start-up log, launch command, script or compose file, profile of nsys, ncu or "
    "torch.profiler, benchmark result, or run record; - is standard input."
)


@command(
    "explain",
    "dsv4kv explain startup.log              what the number means, known faults",
    "dsv4kv explain serve.sh --gpu b200      what the command allocates, known faults",
    "dsv4kv explain server.sqlite            what the KV cache costs in a profile",
    "dsv4kv explain -                        any of them from standard input",
)
def explain(
    given: list[str] = opt.required(f"A {_GIVEN}", "FILE…"),
    model: opt.Text = opt.option(
        opt.MODELS, "NAME|FILE", shown="the file's, else v4-flash", values=opt.MODEL_NAMES
    ),
    gpu: opt.Text = opt.option(opt.GPU, "NAME", shown="h200"),
    engine: opt.Text = opt.rare("Engine and version.", "NAME:VERSION"),
    as_json: bool = opt.AS_JSON,
    verbose: bool = opt.VERBOSE,
) -> None:
    """Explain start-up logs, launch commands, profiles and benchmark results.

    A file is recognised by its content. Prints sizes or times, and known faults of the engine.
    Ends with 1 if something does not fit or a fault is certain.
    """
    from dsv4kv.view import render, table

    texts = {"model": model, "gpu": gpu, "engine": engine}
    options = {name: text for name, text in texts.items() if text is not None}
    with temporary_folder("dsv4kv-explain-") as folder:
        stdin = folder / "stdin"
        if "-" in given:
            stdin.write_bytes(standard_input().read(DOCUMENT_BYTES + 1))  # which no reader takes
        places = [str(stdin) if each == "-" else each for each in given]
        try:
            kinds = [recognise(each) for each in places]
            asked = zip(kinds, given, places, strict=True)
            answers = [_explain(*each, options) for each in asked]
            if as_json:
                documents = [each.document() for each in answers]
                opt.print_json(documents if len(documents) > 1 else documents[0])
            for number, answer in enumerate([] if as_json else answers):
                render.show([""] * bool(number) + [table.strong(answer.file)] * (len(answers) > 1))
                render.show(answer.parts(verbose=verbose))
        except Dsv4kvError as error:
            raise type(error)(str(error).replace(str(stdin), "-")) from None
    fits = all(each.fits for answer in answers for each in answer.found)
    if not fits or any(each.is_sure for answer in answers for each in answer.faults):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Answer:
    file: str
    kind: str
    found: Sequence[Found]  # of a script one for each command
    linted: "Sequence[Part]" = ()  # known faults, in brief
    options: Sequence[str] = ()  # of lint, with which it finds the same
    faults: "Sequence[Fault]" = ()

    def document(self) -> dict[str, Any]:
        return {
            "files": [self.file],
            "kind": self.kind,
            "answers": [each.document() for each in self.found],
            "faults": [each.as_values() for each in self.faults],
        }

    def parts(self, *, verbose: bool) -> "Iterator[Part]":
        """Sizes or times, then known faults in brief."""
        from dsv4kv.view.table import Command

        for number, found in enumerate(self.found):
            yield from [""] * bool(number)
            yield from found.page().parts(verbose=verbose)
        if self.linted:
            yield from ("", *self.linted)
        if self.faults and self.file != "-":
            yield Command.of("dsv4kv", "lint", self.file, *self.options)


def recognise(given: str) -> str:
    """What was given: ``log``, ``command``, ``profile`` or ``result``; raises ``ConfigError``."""
    from dsv4kv.budget.servers import find_launches
    from dsv4kv.diagnose import subjects
    from dsv4kv.profile.read import is_profile

    path = subjects.as_path(given)
    if path is not None and is_profile(path):
        return "profile"
    kind, text = subjects.recognise(path) if path else ("command", given)
    launches, why = kind != "command", ""
    if not launches:
        try:
            launches = any(True for _ in find_launches(text))
        except ConfigError as error:
            why = f" ({str(error).rstrip('.')})"
    if path is not None and (kind == "log" or not launches):
        from dsv4kv.traces import FORMATS, detect_format

        with suppress(TraceError):
            if (name := detect_format(path)) in FORMATS:
                raise ConfigError(
                    f"{path} is a trace ({name}): dsv4kv trace info prints what it asks for, "
                    f"replay what a server does with it. Give a {_GIVEN}"
                )
    if not launches:
        raise ConfigError(f"{given[:200]} is not recognised{why}: give a {_GIVEN}")
    return kind


def _explain(kind: str, name: str, given: str, options: Mapping[str, str]) -> _Answer:
    """Sizes or times, and known faults; the reason where only faults are known."""
    from dsv4kv.diagnose.faults import judge, load_faults
    from dsv4kv.diagnose.subjects import read_subjects
    from dsv4kv.view.checks import brief_findings

    if kind == "profile":
        return _Answer(name, kind, [_profile(Path(given))])
    try:
        found, failed = list(_sizes(kind, name, given, options)), None
    except Dsv4kvError as error:
        found, failed = [], error
    versions = _versions(found[0]) if kind == "log" and found else set()
    known_by = {name: options[name] for name in ("engine", "gpu") if name in options}
    if len(versions) == 1 and ":" not in known_by.get("engine", ""):
        known_by["engine"] = min(versions)
    try:
        subjects = read_subjects(given, known_by.get("engine"), known_by.get("gpu"))
    except ConfigError:
        if kind != "command":
            raise
        subjects = []  # an engine of which no faults are known
    known = load_faults()
    faults = judge(subjects, known, date.today())
    if len(versions) > 1:  # a fault of none of them is none
        named = [each.partition(":")[2] for each in versions]
        faults = [each for each in faults if not all(each.fault.covers(v) is False for v in named)]
    if failed:
        if not faults:
            raise failed
        found = [_refused(failed)]
    linted = list(brief_findings(subjects, faults, len(known))) if subjects else []
    words = [word for each, text in known_by.items() for word in (f"--{each}", text)]
    return _Answer(name, kind, found, linted, words, faults)


def _refused(error: Dsv4kvError) -> Found:
    """The reason in place of an answer."""
    from dsv4kv.view.table import Finding, Page

    reason = Page("", [Finding("warning", str(error))])
    fits = not isinstance(error, DoesNotFit)
    return Found(partial(dict, error=str(error)), lambda: reason, fits)


def _versions(log: Found) -> set[str]:
    """The versions whose sizes a log has that names none."""
    sizes = log.document()
    read = {each["what"] for each in sizes["statements"] if each["how"] == "read"}
    if not sizes["exact"] or "rules" in read or ":" not in sizes["engine"]:
        return set()
    return {sizes["engine"], *(title.partition(",")[0] for title in sizes["candidates"])}


def _sizes(kind: str, name: str, given: str, options: Mapping[str, str]) -> Iterator[Found]:
    from dsv4kv.budget.launch import read_commands

    if kind == "log":
        yield _log(name, Path(given), options)
    elif kind == "command":
        readings = read_commands(given, options.get("model"), set(options))
        typed = [(set[str](), ["--command", name])]
        typed += [({each}, [f"--{each}", text]) for each, text in options.items()]
        for read in readings:
            only = typed if len(readings) == 1 else None
            try:
                reading = read()
                yield size({**reading.texts, **options}, (reading, dict(options)), only)
            except Dsv4kvError as error:
                if only:
                    raise
                yield _refused(error)
    else:
        from dsv4kv.replay.clock.measured import read_results
        from dsv4kv.view.explain import results_page, results_values

        runs = read_results([Path(given)])
        page = partial(results_page, runs, Path(given))
        yield Found(partial(results_values, runs), page, fits=True)


def _log(name: str, path: Path, options: Mapping[str, str]) -> Found:
    from dsv4kv.budget.gpus import load_gpu
    from dsv4kv.engines.explain import Statement, explain_startup
    from dsv4kv.engines.logs import read_log, with_given
    from dsv4kv.view.explain import explanation_page

    gpu = load_gpu(options["gpu"]) if "gpu" in options else None
    log = with_given(replace(read_log(path), source=name), options, gpu.arch if gpu else None)
    found, best = explain_startup(log)
    layouts = list[str]()
    if gpu:
        _check_gpu(found, gpu)
        given = Statement("GPU, of formats not printed", gpu.name, "given")
        found = replace(found, statements=(*found.statements, given))
        model = best.deployment.model.name
        layouts = ["dsv4kv", "budget", "--model", model, "--gpu", gpu.name, "--engine"]
        layouts += [found.engine, "--context", str(found.context_tokens)]
        for setting, flag in (("tensor_parallel", "--tp"), ("data_parallel", "--dp")):
            layouts += [flag, str(count)] if (count := log.whole(setting)) else []
    page = partial(explanation_page, found, layouts if found.exact else ())
    return Found(partial(asdict, found), page, not found.refused)


def _check_gpu(log: "Explanation", gpu: "Gpu") -> None:
    """Refuse a GPU that the log's start does not fit on."""
    parts, cache = log.measured, log.cache_bytes / 2**30 if log.exact else 0.0
    used = cache + parts.get("weights", 0.0) + parts.get("CUDA graphs", 0.0)
    used = max(used, parts.get("free before the weights", 0.0))
    if used * 2**30 > gpu.memory_bytes:
        raise ConfigError(
            f"--gpu {gpu.name}: {log.source} shows {used:,.1f} GiB on one GPU, and {gpu.name} has "
            f"{format_bytes(gpu.memory_bytes)}: name the log's GPU, or leave --gpu out."
        )


def _profile(path: Path) -> Found:
    from dsv4kv.profile.read import is_record, load_profile, record_of_profile
    from dsv4kv.profile.trace import STEP
    from dsv4kv.runs.store import dumps, load_record
    from dsv4kv.view.runs import run_page

    if is_record(path):
        record = load_record(path)
    else:
        record = record_of_profile(load_profile(path, STEP).profile, path, STEP, sys.argv)
    return Found(lambda: json.loads(dumps(record)), partial(run_page, record), fits=True)
