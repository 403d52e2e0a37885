"""A run on the command line: options as settings, a record that is kept, and an exit code."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsv4kv.cli import ENDINGS
from dsv4kv.errors import INTERRUPTED, VerificationError
from dsv4kv.view.console import open_console, print_document, say

if TYPE_CHECKING:
    from dsv4kv.record.schema import RunRecord
    from dsv4kv.record.store import Saved


def keep_record(record: "RunRecord", folder: Path, json_: str | None, *, silent: bool) -> None:
    """Save a record and print it; with ``silent`` only its problems, on standard error.

    ``json_`` names a file that gets it, too; ``-`` is standard output.
    """
    from dsv4kv.record.store import dumps, save_record
    from dsv4kv.view.record import report_record
    from dsv4kv.view.terminal import show

    with endings_put_off():
        saved = save_record(record, folder)
    console = open_console(stderr=True, soft_wrap=True) if silent else open_console()
    show(report_record(record, quiet=silent), console)
    say_saved(saved, silent=silent)
    if json_:
        write_json(dumps(record), json_)


@contextmanager
def endings_put_off() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never reach it
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def say_saved(saved: "Saved", *, silent: bool) -> None:
    """Say where a record is; with ``silent`` only that it is not where it should be."""
    if not silent:
        say(f"record: {saved.path}")
    if saved.problem:
        say(f"warning: {saved.problem}", err=True)


def write_json(text: str, target: str) -> None:
    """Write a document to the file that ``--json`` named; ``-`` is standard output."""
    from dsv4kv.files import write_named

    if target == "-":
        print_document(text)
    else:
        write_named(Path(target), text, "--json")


def as_settings(keys: Mapping[str, str], **given: str | float | None) -> list[str]:
    """Options as ``KEY=VALUE``, by their keys; quoted so that YAML takes values as they are."""
    import json

    return [
        f"{keys[name]}={json.dumps(value)}" for name, value in given.items() if value is not None
    ]


def end_run(record: "RunRecord") -> None:
    """Leave with the exit code of the run's status, and its sentences where it failed."""
    problems = [case.error for case in record.cases if case.status == "failed" and case.error]
    problems += [
        f"launch {launch.launch} {launch.status.replace('_', ' ')}: {launch.error}"
        for launch in record.launches
        if launch.status in ("crashed", "timeout", "out_of_memory")
    ]
    if problems:
        raise VerificationError("\n".join(dict.fromkeys(problems)))
    if record.status == "incomplete":
        raise typer.Exit(INTERRUPTED)
