"""``dsv4kv conform``: an installed engine's own cache manager under a model checker."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dsv4kv.view.console import open_console, print_document

if TYPE_CHECKING:
    from dsv4kv.conform.check import Verdict

EPILOG = """\
[bold]Examples[/bold]

dsv4kv conform vllm                                        the vLLM of this environment

dsv4kv conform sglang --python ~/sglang/bin/python         SGLang's, of another one

dsv4kv conform vllm --host                                 with its offloading to host memory

dsv4kv conform vllm --operations 200000 --pytest case.py   long; a failure to attach to an issue
"""


def conform(
    engine: Annotated[Literal["vllm", "sglang"], typer.Argument(help="Whose manager.")],
    python: Annotated[
        str | None, typer.Option(help="Python of the engine's environment (this one).")
    ] = None,
    package: Annotated[
        Path | None,
        typer.Option(help="Folder of the unpacked wheel, where the engine is not installed."),
    ] = None,
    host: Annotated[
        bool, typer.Option("--host", help="With host memory behind it (vLLM, SGLang).")
    ] = False,
    operations: Annotated[int, typer.Option(min=1, help="How many to do.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Another one draws other sequences.")] = 0,
    pytest: Annotated[
        Path | None,
        typer.Option(help="File for the shortest failing sequence, as a test of its own."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check an engine's cache manager: no block lost, no false hit, no request stuck."""
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.conform.check import conform as check
    from dsv4kv.conform.run import drive
    from dsv4kv.view.conform import report_conformity
    from dsv4kv.view.render import show

    stderr = open_console(stderr=True, quiet=as_json)
    with (
        drive(engine, python, package) as manager,
        Watcher(stderr, "conform", "operations", operations) as watcher,
    ):
        verdict = check(
            manager,
            operations,
            seed,
            lambda so_far: watcher.reach(so_far.operations, operations),
            host=host,
        )
    if as_json:
        print_document(_as_json(engine, manager.version, verdict))
    else:
        show(report_conformity(engine, manager.version, verdict))
    if pytest and verdict.failures:
        _write_test(engine, manager.version, verdict, pytest)
    if verdict.failures:
        raise typer.Exit(1)


def _write_test(engine: str, version: str, verdict: "Verdict", path: Path) -> None:
    from dsv4kv.conform.pytest_file import test_file
    from dsv4kv.files import write_named

    shortest = min(verdict.failures.values(), key=lambda each: len(each.sequence.operations))
    write_named(path, test_file(engine, version, shortest), "--pytest")


def _as_json(engine: str, version: str, verdict: "Verdict") -> str:
    import json
    from dataclasses import asdict

    document = {
        "ok": not verdict.failures,
        "engine": engine,
        "version": version,
        "operations": verdict.operations,
        "sequences": verdict.sequences,
        "broken": dict(verdict.broken),
        "failures": [asdict(failure) for failure in verdict.failures.values()],
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"
