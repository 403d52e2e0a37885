"""``dsv4kv doctor``, ``conform``, ``lint``, ``probe``, ``inspect``: checks with a verdict."""

from dataclasses import asdict
from datetime import date
from pathlib import Path
from secrets import randbits
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import typer

from dsv4kv.cli import command
from dsv4kv.cli import options as opt
from dsv4kv.errors import (
    INTERRUPTED,
    ConfigError,
    DeviceError,
    StoreUnavailable,
    VerificationError,
)
from dsv4kv.units import parse_count, parse_seconds
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from dsv4kv.diagnose.dumps import Inspection

_FAULT = 1
"""Exit code where a fault is found."""

_GPU = (
    "Check every operation on the GPU instead, and time copies, gathers, reads and a step against "
    "what this GPU should take (a minute; 4 GiB)."
)


@command(
    "doctor",
    "dsv4kv doctor                 look at this machine",
    "dsv4kv doctor --check-gpu     check and time the GPU: a minute",
)
def doctor(
    gpu: bool = opt.flag("--check-gpu", _GPU),
    as_json: bool = opt.AS_JSON,
    verbose: bool = opt.VERBOSE,
) -> None:
    """Check this machine: what it has, what is missing and what that disables.

    Fails if the default bench could not run.
    """
    from dsv4kv.diagnose.doctor import examine
    from dsv4kv.view.checks import report_checks, report_gpu

    if gpu:
        from dsv4kv.diagnose.gpu import examine_gpu

        report = examine_gpu()
        opt.tell(report_gpu(report), {"ok": not report.wrong, **asdict(report)}, as_json=as_json)
        if report.wrong:
            raise typer.Exit(VerificationError.exit_code)
        return
    checks = list(examine())
    broken = any(check.status == "broken" for check in checks)
    rows = [asdict(check) for check in checks]
    parts = report_checks(checks, verbose=verbose)
    opt.tell(parts, {"ok": not broken, "checks": rows}, as_json=as_json)
    if broken:
        raise typer.Exit(DeviceError.exit_code)


_PACKAGE = "Folder of the unpacked wheel, where the engine is not installed."


@command(
    "conform",
    "dsv4kv conform vllm                                  the vLLM of this environment",
    "dsv4kv conform sglang --python ~/sglang/bin/python   SGLang's, of another one",
    "dsv4kv conform vllm --operations 200000 --json       a failure to attach to an issue",
)
def conform(
    engine: Literal["vllm", "sglang"] = opt.required("Engine."),
    python: opt.Text = opt.option("Python of the engine's environment.", shown="this one"),
    package: Path | None = opt.rare(_PACKAGE),
    operations: int = opt.rare("Number of operations.", min=1, default=20_000),
    seed: int = opt.rare("Seed of the operations.", default=0),
    as_json: bool = opt.AS_JSON,
) -> None:
    """Check an engine's cache manager: lost blocks, false hits, stuck requests."""
    from dsv4kv.diagnose import conform as check
    from dsv4kv.view.checks import report_conformity

    with (
        check.drive(engine, python, package) as manager,
        opt.watch("conform", "operations", operations, quiet=as_json) as watcher,
    ):
        verdict = check.conform(
            manager, operations, seed, lambda at: watcher.reach(at.operations, operations)
        )
    failures = list(verdict.failures.values())
    document = {
        "ok": not failures,
        "engine": engine,
        "version": manager.version,
        "operations": verdict.operations,
        "sequences": verdict.sequences,
        "broken": dict(verdict.broken),
        "failures": [asdict(failure) for failure in failures],
    }
    parts = report_conformity(engine, manager.version, verdict, check.INVARIANTS)
    opt.tell(parts, document, as_json=as_json)
    if failures:
        raise typer.Exit(1)


_SUBJECT = (
    "A launch command of vLLM or SGLang, a file with some (script, YAML, compose), the log of a "
    "start, or the result file of a benchmark."
)
_ENGINE = "Engine and version: vllm:0.33."


@command(
    "lint",
    "dsv4kv lint serve.sh --engine vllm:0.22                 every command of a script",
    "dsv4kv lint startup.log  version and arguments from the log",
    "dsv4kv lint runs.jsonl                                  traps of benchmarks",
    "dsv4kv lint 'sglang serve --model DeepSeek-V4-Flash --hicache-size 100'",
)
def lint(
    given: str = opt.required(_SUBJECT, "COMMAND|LOG|RESULT"),
    engine: opt.Text = opt.option(_ENGINE, "NAME:VERSION", shown="of the image or log"),
    gpu: opt.Text = opt.rare(opt.GPU, "NAME", shown="of the log"),
    as_json: bool = opt.AS_JSON,
) -> None:
    """Find known faults of engines in commands and logs, and benchmark pitfalls.

    Looks the server up in a table of faults with their threads, versions and costs; nothing is
    run. What depends on something unknown, a version or a model, is possible. Ends with
    1 if a fault is found for sure.
    """
    from dsv4kv.diagnose import faults
    from dsv4kv.diagnose.subjects import read_subjects
    from dsv4kv.view.checks import report_findings

    subjects, known = read_subjects(given, engine, gpu), faults.load_faults()
    found = faults.judge(subjects, known, date.today())
    names = ("title", "engine", "version")
    document = {
        "looked_at": [{name: getattr(each, name) for name in names} for each in subjects],
        "known_faults": len(known),
        "findings": [each.as_values() for each in found],
    }
    opt.tell(report_findings(subjects, found, len(known)), document, as_json=as_json)
    if any(each.is_sure for each in found):
        raise typer.Exit(_FAULT)


_URL = (
    "A server of OpenAI's API that takes token ids: vLLM, SGLang or another. A key is taken from "
    "DSV4KV_API_KEY or OPENAI_API_KEY."
)


_NAME = "Its name of the model."


@command(
    "probe",
    "dsv4kv probe http://localhost:8000                    what hits, from where, how much",
    "dsv4kv probe localhost:30000 --metrics localhost:30000/metrics --budget 20m",
    "dsv4kv probe http://localhost:8000 --html page.html",
)
def probe(
    url: str = opt.required(_URL, "URL"),
    model: opt.Text = opt.option(
        _NAME, "NAME", "--served-model-name", shown="the first it serves"
    ),
    metrics: opt.Text = opt.option("Its metrics page, for tiers and drafts.", "URL"),
    budget: str = opt.option("Max time: 90s, 5m, 1h.", "TIME", default="5m"),
    tokens: str = opt.rare("Max prompt tokens in total: 500K, 20M.", "COUNT", default="4M"),
    seed: int | None = opt.rare("RNG seed.", shown="random"),
    html: Path | None = opt.HTML,
    as_json: bool = opt.AS_JSON,
) -> None:
    """Test a running server's prefix cache with prompts that it has never seen.

    Finds the smallest prefix that hits, the step of hits, what drafts cost, where branches hit,
    how much is held, whether tiers are read back and whether cached answers are right; or says
    why it cannot be known. Ends with 1 if a fault is found, 5 if the server stops answering.
    """
    from dsv4kv.diagnose.probe import FIXED_TOKENS, SHORT_TOKENS, examine
    from dsv4kv.diagnose.questioner import Ledger, OpenAiServer, Questioner
    from dsv4kv.view.checks import probe_page

    ledger = Ledger(parse_count(tokens), parse_seconds(budget))
    if ledger.most_tokens < 3 * SHORT_TOKENS or ledger.most_s < 1:
        raise ConfigError(
            f"--tokens {tokens} --budget {budget}: a prompt that is sent twice takes "
            f"{3 * SHORT_TOKENS:,} tokens and a second at least."
        )
    rule_tokens = min(FIXED_TOKENS, ledger.most_tokens)
    spent = f"this asks for at most {ledger.most_tokens:,} tokens in {ledger.most_s:,.0f} s"
    if rule_tokens < ledger.most_tokens:
        spent += f": up to {rule_tokens:,} to learn the rule, the rest for the capacity"
    say(spent, err=True)
    begun_s = monotonic()
    server = OpenAiServer(url, model, metrics, most_s=ledger.most_s)
    ledger.tokens = server.tokens
    if metrics and server.counters() is None:
        say(f"--metrics {metrics} does not answer; going on without", err=True)
    questioner = Questioner(server, ledger, randbits(64) if seed is None else seed, begun_s)
    found = examine(questioner, lambda name: say(f"… {name}", err=True))
    page = probe_page(found, ledger)
    document = {
        "model": server.model,
        "died": found.died,
        "interrupted": found.interrupted,
        "conclusions": [asdict(each) for each in found.conclusions],
        "spent": {"prompts": ledger.prompts, "tokens": ledger.tokens},
    }
    opt.tell(page.parts(verbose=True), document, as_json=as_json)
    if html:
        opt.write_page(page.made_now(), html)
    if found.interrupted:
        say("interrupted: what was learned before is above.", err=True)
        raise typer.Exit(INTERRUPTED)
    if found.died:
        say(f"error: {found.died}; what was learned before is above.", err=True)
        raise typer.Exit(StoreUnavailable.exit_code)
    if any(each.level == "bad" for each in found.conclusions):
        raise typer.Exit(_FAULT)


_SECOND = "The same content again: after a hit, or of the decode side."
_FORMAT = "The record format, where bytes do not show it."
_RATIO = "Tokens of an entry: 4, 128; 0 for a window. Rows are in order then."


@command(
    "inspect",
    "dsv4kv inspect pages.npy                                  which record, which faults",
    "dsv4kv inspect cold.npy hit.npy --ratio 4                 where two dumps part, and how",
    "dsv4kv inspect kv.safetensors --tensor layer2 --table table.npy --ratio 4",
)
def inspect(
    dump: Path = opt.required(".npy, .safetensors, or a tier's file of bytes."),
    dump2: Path | None = opt.argument(_SECOND, shown=True),
    tensor: opt.Text = opt.rare("Tensor of a file with several.", "NAME"),
    format_: opt.Text = opt.rare(_FORMAT, "NAME", "--format"),
    entries: int | None = opt.rare("Entries of a page.", min=1),
    table: Path | None = opt.option("The request's pages in logical order (.npy).", "FILE"),
    table2: Path | None = opt.rare("Block table of the second dump.", "FILE"),
    ratio: int | None = opt.option(_RATIO, min=0, max=1 << 20),
    model: str = opt.MODEL_RARE,
    as_json: bool = opt.AS_JSON,
) -> None:
    """Find the entry format of dumped cache pages, and corrupt entries.

    With two dumps: the first difference by position, and its kind.
    """
    from dsv4kv.diagnose import dumps
    from dsv4kv.model.presets import load_model
    from dsv4kv.view.checks import report_comparison, report_inspection

    if table2 and not dump2:
        raise ConfigError("--table2 is of a second dump: name that, too, or give --table.")
    context = dumps.Request(load_model(model), ratio)
    asked: dict[str, Any] = {"tensor": tensor, "format_name": format_}
    comparison = None
    with open_console(stderr=True).status("reading pages"):
        found = [dumps.inspect(dump, context, **asked, entries=entries, table_file=table)]
        if dump2 is not None:
            found.append(dumps.inspect(dump2, context, **asked, table_file=table2))
            comparison = dumps.compare(found[0], found[1], context)
    described = [_describe(each) for each in found]
    document = {"dumps": described, "comparison": comparison and asdict(comparison)}
    parts = [part for each in found for part in report_inspection(each)]
    parts += report_comparison(comparison) if comparison else []
    opt.tell(parts, document, as_json=as_json)
    unknown = any(each.record is None for each in found)
    kinds = {each.kind for each in comparison.differences} if comparison else set()
    if unknown or kinds - {"one step"} or any(each.faults for each in found):
        raise typer.Exit(1)


def _describe(found: "Inspection") -> dict[str, Any]:
    record = found.record
    return {
        "file": str(found.dump.path),
        "tensor": found.dump.name or None,
        "bytes": len(found.dump.data),
        "record": record and record.name,
        "arrangement": record and record.arrangement,
        "entry_bytes": record and record.layout.format.entry_bytes,
        "page_entries": record and record.layout.entries,
        "faults": [asdict(fault) for fault in found.faults],
    }
