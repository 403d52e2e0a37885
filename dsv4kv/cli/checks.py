"""``dsv4kv doctor``, ``conform``, ``lint`` and ``probe``: checks that end with a verdict."""

from dataclasses import asdict
from datetime import date
from pathlib import Path
from secrets import randbits
from time import monotonic
from typing import Literal

import typer

from dsv4kv.cli import COMMANDS, examples, group
from dsv4kv.cli import options as opt
from dsv4kv.errors import (
    INTERRUPTED,
    ConfigError,
    DeviceError,
    StoreUnavailable,
    VerificationError,
)
from dsv4kv.units import parse_count, parse_seconds
from dsv4kv.view.console import say

app = group(COMMANDS["doctor"], "dsv4kv doctor")
_FAULT = 1
"""Exit code where a fault is found."""

_GPU = (
    "Check every operation on the GPU instead, and time copies, gathers, reads and a step against "
    "what this GPU should take (a minute; 4 GiB)."
)


@app.command(
    "doctor",
    epilog=examples(
        "dsv4kv doctor                 look at this machine",
        "dsv4kv doctor --check-gpu     check and time the GPU: a minute",
    ),
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
    from dsv4kv.view.checks import report_checks

    if gpu:
        _look_at_gpu(as_json=as_json)
        return
    checks = list(examine())
    broken = any(check.status == "broken" for check in checks)
    rows = [asdict(check) for check in checks]
    parts = report_checks(checks, verbose=verbose)
    opt.tell(parts, {"ok": not broken, "checks": rows}, as_json=as_json)
    if broken:
        raise typer.Exit(DeviceError.exit_code)


def _look_at_gpu(*, as_json: bool) -> None:
    from dsv4kv.diagnose.gpu import examine_gpu
    from dsv4kv.view.checks import report_gpu

    report = examine_gpu()
    opt.tell(report_gpu(report), {"ok": not report.wrong, **asdict(report)}, as_json=as_json)
    if report.wrong:
        raise typer.Exit(VerificationError.exit_code)


_PACKAGE = "Folder of the unpacked wheel, where the engine is not installed."


@app.command(
    "conform",
    epilog=examples(
        "dsv4kv conform vllm                                  the vLLM of this environment",
        "dsv4kv conform sglang --python ~/sglang/bin/python   SGLang's, of another one",
        "dsv4kv conform vllm --operations 200000 --json       a failure to attach to an issue",
    ),
)
def conform(
    engine: Literal["vllm", "sglang"] = opt.required("Engine."),
    python: opt.Text = opt.option("Python of the engine's environment.", show_default="this one"),
    package: Path | None = opt.option(_PACKAGE, rare=True),
    operations: int = opt.option("Number of operations.", min=1, rare=True, default=20_000),
    seed: int = opt.option("Seed of the operations.", rare=True, default=0),
    as_json: bool = opt.AS_JSON,
) -> None:
    """Check an engine's cache manager: lost blocks, false hits, stuck requests."""
    from dsv4kv.diagnose.conform import INVARIANTS, drive
    from dsv4kv.diagnose.conform import conform as check
    from dsv4kv.view.checks import report_conformity

    with (
        drive(engine, python, package) as manager,
        opt.watch("conform", "operations", operations, quiet=as_json) as watcher,
    ):
        verdict = check(
            manager,
            operations,
            seed,
            lambda so_far: watcher.reach(so_far.operations, operations),
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
    parts = report_conformity(engine, manager.version, verdict, INVARIANTS)
    opt.tell(parts, document, as_json=as_json)
    if failures:
        raise typer.Exit(1)


_SUBJECT = (
    "A launch command of vLLM or SGLang, a file with some (script, YAML, compose), the log of a "
    "start, or the result file of a benchmark."
)
_ENGINE = "Engine and version: vllm:0.33."


@app.command(
    "lint",
    epilog=examples(
        "dsv4kv lint serve.sh --engine vllm:0.22                 every command of a script",
        "dsv4kv lint startup.log  version and arguments from the log",
        "dsv4kv lint runs.jsonl                                  traps of benchmarks",
        "dsv4kv lint 'sglang serve --model DeepSeek-V4-Flash --hicache-size 100'",
    ),
)
def lint(
    given: str = opt.required(_SUBJECT, "COMMAND|LOG|RESULT"),
    engine: opt.Text = opt.option(_ENGINE, "NAME:VERSION", show_default="of the image or log"),
    gpu: opt.Text = opt.option(opt.GPU, "NAME", rare=True, show_default="of the log"),
    as_json: bool = opt.AS_JSON,
) -> None:
    """Find known faults of engines in commands and logs, and benchmark pitfalls.

    Looks the server up in a table of faults with their threads, versions and costs; nothing is
    run. What depends on something unknown, a version or a model, is possible. Ends with
    1 if a fault is found for sure.
    """
    from dsv4kv.diagnose.faults import judge, load_faults
    from dsv4kv.diagnose.subjects import read_subjects
    from dsv4kv.view.checks import report_findings

    subjects, faults = read_subjects(given, engine, gpu), load_faults()
    found = judge(subjects, faults, date.today())
    names = ("title", "engine", "version")
    document = {
        "looked_at": [{name: getattr(each, name) for name in names} for each in subjects],
        "known_faults": len(faults),
        "findings": [each.as_values() for each in found],
    }
    opt.tell(report_findings(subjects, found, len(faults)), document, as_json=as_json)
    if any(each.is_sure for each in found):
        raise typer.Exit(_FAULT)


_URL = (
    "A server of OpenAI's API that takes token ids: vLLM, SGLang or another. A key is taken from "
    "DSV4KV_API_KEY or OPENAI_API_KEY."
)


@app.command(
    "probe",
    epilog=examples(
        "dsv4kv probe http://localhost:8000                    what hits, from where, how much",
        "dsv4kv probe localhost:30000 --metrics localhost:30000/metrics --budget 20m",
        "dsv4kv probe http://localhost:8000 --html page.html",
    ),
)
def probe(
    url: str = opt.required(_URL, "URL"),
    model: opt.Text = opt.option(
        "Its name of the model.", "NAME", "--served-model-name", show_default="the first it serves"
    ),
    metrics: opt.Text = opt.option("Its metrics page, for tiers and drafts.", "URL"),
    budget: str = opt.option("Max time: 90s, 5m, 1h.", "TIME", default="5m"),
    tokens: str = opt.option(
        "Max prompt tokens in total: 500K, 20M.", "COUNT", rare=True, default="4M"
    ),
    seed: int | None = opt.option("RNG seed.", show_default="random", rare=True),
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
