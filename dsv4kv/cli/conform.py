"""``dsv4kv conform``: an installed engine's own cache manager under a model checker."""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import typer

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt

EPILOG = examples(
    "dsv4kv conform vllm                                  the vLLM of this environment",
    "dsv4kv conform sglang --python ~/sglang/bin/python   SGLang's, of another one",
    "dsv4kv conform vllm --operations 200000 --json       a failure to attach to an issue",
)
_PACKAGE = "Folder of the unpacked wheel, where the engine is not installed."


def conform(
    engine: Literal["vllm", "sglang"] = opt.required("Engine."),
    python: opt.Text = opt.option("Python of the engine's environment.", show_default="this one"),
    package: Path | None = opt.option(_PACKAGE, rare=True),
    operations: int = opt.option("Number of operations.", min=1, rare=True, default=20_000),
    seed: int = opt.option("Seed of the operations.", rare=True, default=0),
    as_json: bool = opt.AS_JSON,
) -> None:
    """Check an engine's cache manager: lost blocks, false hits, stuck requests."""
    from dsv4kv.diagnose.conform.check import INVARIANTS, drive
    from dsv4kv.diagnose.conform.check import conform as check
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
