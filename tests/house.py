"""Measures of the source tree, as a newcomer meets it; ``make house``.

Usage: ``python -m tests.house [FOLDER]``. The folder is a checkout, this one if none is given, so
that two revisions can be held next to each other.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median

PACKAGE = "dsv4kv"
SHORT_LINES = 60
STEP = "ServingLoop._step"
"""The function that is one step of the serving loop."""

# Prints the files and rooms of the last decode step of a small bench, in the order of their calls.
TRACED = f"""
import sys
from pathlib import Path
import {PACKAGE}
root = str(Path({PACKAGE}.__file__).parent) + "/"
steps, inside = [], False
def watch(frame, event, argument):
    global inside
    code = frame.f_code
    if not code.co_filename.startswith(root) or event not in ("call", "return"):
        return
    if code.co_qualname == "{STEP}":
        inside = event == "call"
        if inside:
            steps.append([])
    elif inside:
        steps[-1].append(code.co_filename.removeprefix(root))
from {PACKAGE}.cli import main
sys.argv = ["{PACKAGE}", "bench", "smoke", "--quiet", "--out", sys.argv[1],
            "--set", "measure.verify_every=0"]
sys.setprofile(watch)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
print("STEP", *[step for step in steps if len(step) > 100][-1])
"""


@dataclass(frozen=True)
class Module:
    """A module and its text."""

    name: str
    text: str

    @property
    def lines(self) -> int:
        """Lines of its file."""
        return len(self.text.splitlines())

    @property
    def room(self) -> str:
        """The part of the package that it belongs to."""
        return [*self.name.split("."), PACKAGE][1]

    @cached_property
    def tree(self) -> ast.Module:
        """What it says."""
        return ast.parse(self.text)

    @property
    def imports(self) -> set[str]:
        """Everything of the package that it imports, wherever, as modules or what is in them."""
        return {
            name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
            for alias in node.names
            for name in (str(node.module), f"{node.module}.{alias.name}")
        }

    @property
    def functions(self) -> list[int]:
        """Lines of every function."""
        return [
            (node.end_lineno or 0) - node.lineno + 1
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]

    def constructs(self, *names: str) -> bool:
        """Whether one of these is called."""
        return any(
            isinstance(node, ast.Call)
            and (getattr(node.func, "id", "") in names or getattr(node.func, "attr", "") in names)
            for node in ast.walk(self.tree)
        )


def read_modules(folder: Path) -> list[Module]:
    """Every module of the package in a checkout."""
    return [
        Module(".".join(path.relative_to(folder).with_suffix("").parts), path.read_text("utf-8"))
        for path in sorted((folder / PACKAGE).rglob("*.py"))
    ]


def count_lonely(modules: list[Module]) -> tuple[int, int, int]:
    """Short modules, those that only a module of their folder imports, and the lines of these."""
    users: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for name in module.imports:
            users[name].add(module.name)
    short = [m for m in modules if m.lines < SHORT_LINES and not m.name.endswith("__init__")]
    lonely = [
        module
        for module in short
        if len(users[module.name]) == 1
        and next(iter(users[module.name])).rpartition(".")[0] == module.name.rpartition(".")[0]
    ]
    return len(short), len(lonely), sum(module.lines for module in lonely)


def trace_step(folder: Path) -> list[str]:
    """Files of the package that a decode step calls into and comes back from, in order."""
    done = subprocess.run(
        [sys.executable, "-c", TRACED, str(folder / "build/house")],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("STEP ")]
    if not told:
        raise SystemExit(f"The bench that is looked at did not run:\n{done.stderr}")
    return told[-1].split()[1:]


def list_measures(folder: Path) -> list[tuple[str, str]]:
    """Every measure by name."""
    modules = read_modules(folder)
    lengths = sorted(lines for module in modules for lines in module.functions)
    ninetieth = lengths[len(lengths) * 9 // 10]
    short, lonely, lonely_lines = count_lonely(modules)
    step = trace_step(folder)
    rooms = [path.split("/")[0] for path in step]
    tables = {m.room for m in modules if m.constructs("Table", "new_table", "add_column")}
    names = [module.name.rpartition(".")[2] for module in modules]
    repeated = {name for name in names if names.count(name) > 1 and name != "__init__"}
    command_lines = sum(module.lines for module in modules if module.room == "cli")
    return [
        ("modules", f"{len(modules):,}"),
        ("lines", f"{sum(module.lines for module in modules):,}"),
        (f"modules under {SHORT_LINES} lines", f"{short:,}"),
        ("of them with one importer, in their folder", f"{lonely:,} with {lonely_lines:,} lines"),
        ("lines of a function: median; 90 % up to", f"{median(lengths):.0f}; {ninetieth}"),
        ("a decode step: files", f"{len(set(step)):,}"),
        ("a decode step: rooms", f"{len(set(rooms)):,}"),
        ("a decode step: changes of room", f"{sum(a != b for a, b in pairwise(rooms)):,}"),
        ("rooms in which tables are made", f"{len(tables)}: {', '.join(sorted(tables))}"),
        ("lines of cli", f"{command_lines:,}"),
        ("file names that repeat", f"{len(repeated):,}"),
    ]


def main() -> None:
    """Print them as a Markdown table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    print("| measure | |\n|---|---|")
    for name, value in list_measures(folder):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
