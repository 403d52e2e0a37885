"""Runs sequences for another process: a JSON object a line, in and out.

In: ``settings`` and ``operations``. Out: first what the engine is, or ``missing``: why it cannot
be had; then for every sequence what ``run`` says of it: ``broken`` and ``done``.
"""

import json
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import IO, Any

from .broken import find_version, run


def answer(driver: Any, engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What broke in a sequence, and how many of its operations were done."""
    broken, done = run(
        driver.NAME, lambda: driver.Session(engine, asked["settings"]), asked["operations"]
    )
    return {"broken": broken, "done": done}


def serve(driver: Any, folder: str | None, given: Iterable[str], answers: IO[str]) -> None:
    """Answer until there are no more questions."""

    def reply(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        engine = driver.load(folder)
        version = find_version(driver.NAME, folder)
        reply({"version": version, "traits": driver.traits(engine)})
    except Exception as error:  # whatever its import runs into
        reply({"missing": f"{error}" or type(error).__name__})
        return
    for line in given:
        reply(answer(driver, engine, json.loads(line)))


def main() -> None:
    """``python -c "...main()" ENGINE FOLDER FD``: questions come by a file descriptor."""
    name, folder, questions = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no answer
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    with os.fdopen(int(questions)) as given:
        serve(import_module(f"{__package__}.{name}"), folder or None, given, answers)
