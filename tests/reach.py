"""Functions that no documented command reaches: ``make reach`` runs all commands and lists them.

A function in the list is a candidate for deletion: it needs a command, a GPU, another machine's
answer or a fault that the tour does not have, or it is not needed.
"""

import argparse
import ast
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.test_documented_commands import ROOT
from tests.tour import PLACES, Runner, commands, prepare

PACKAGE = ROOT / "dsv4kv"
_HOOK = """
import atexit, os, sys, threading

codes = set()

def note(frame, event, _):
    if event == "call":
        codes.add(frame.f_code)

def keep():
    sys.setprofile(None)
    lines = {f"{code.co_filename}:{code.co_qualname}" for code in codes}
    with open(os.path.join(FOLDER, f"{os.getpid()}.txt"), "w") as file:
        file.write("\\n".join(line for line in lines if "dsv4kv" in line))

atexit.register(keep)
threading.setprofile(note)
sys.setprofile(note)
"""


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Qualified names of a module's functions, and the lines of each without inner ones."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", (child.end_lineno or 0) - child.lineno + 1
                yield from visit(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield from visit(child, prefix)

    return visit(ast.parse(path.read_text("utf-8")), "")


def main() -> None:
    """Run every command once under a profile, and list what none of them called."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "reach")
    folder = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    work, hook, reached = folder / "work", folder / "hook", folder / "reached"
    for each in (work / "home", hook, reached):
        each.mkdir(parents=True)
    (hook / "sitecustomize.py").write_text(f"FOLDER = {str(reached)!r}\n{_HOOK}", "utf-8")
    place = replace(PLACES[1], env={"PYTHONPATH": str(hook)})
    runner = Runner(work, Path(sys.executable).parent)
    prepare(work, runner)
    for command in commands():
        _, _, taken_s = runner.run(command, place)
        print(f"{taken_s:6.1f} s  {command}", file=sys.stderr, flush=True)
    called = {line for path in reached.iterdir() for line in path.read_text("utf-8").splitlines()}
    left, whole = defaultdict[str, int](int), 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, lines in functions(path):
            whole += lines
            if f"{path}:{name}" not in called:
                left[path.relative_to(PACKAGE).parts[0]] += lines
                print(f"{path.relative_to(ROOT)}: {name} ({lines})")
    rooms = ", ".join(f"{room} {lines:,}" for room, lines in sorted(left.items()))
    print(f"{sum(left.values()):,} of {whole:,} lines of functions are not reached: {rooms}")


if __name__ == "__main__":
    main()
