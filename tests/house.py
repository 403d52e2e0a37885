"""Measures of the source tree, as a newcomer meets it; ``make house``.

Usage: ``python -m tests.house [FOLDER]``. The folder is a checkout, this one if none is given, so
that two revisions can be held next to each other.
"""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from statistics import median

PACKAGE = "dsv4kv"
SHORT_LINES = 60
STEP = ["bench", "smoke", "--set", "measure.verify_every=0"], ["ServingLoop._step"]
"""A command, and the function in it that is one step of the serving loop."""
REPLAY = ["replay", "builtin:chat", "--set", "workload.limit=1", "--rule"]
SERVED = ["build_replay", "Scheduler.turn"]
"""Functions of a command that serve its request."""
RULES = "ideal", "vllm-v4:semantic", "sglang-v4:tail", "vllm-v41", "sglang-v41"
V41 = ["--model", "v4.1-flash", "--gpus", "4"]

# Prints the files of every call of some functions of a command, in the order of their calls.
TRACED = f"""
import json, sys
from pathlib import Path
import {PACKAGE}
out, words, names = json.loads(sys.argv[1])
root = str(Path({PACKAGE}.__file__).parent) + "/"
steps, inside = [], False
def watch(frame, event, argument):
    global inside
    code = frame.f_code
    if not code.co_filename.startswith(root) or event not in ("call", "return"):
        return
    if code.co_qualname in names:
        inside = event == "call"
        if inside:
            steps.append([])
    elif inside:
        steps[-1].append(code.co_filename.removeprefix(root))
from {PACKAGE}.cli import main
sys.argv = ["{PACKAGE}", *words, "--quiet", "--out", out]
sys.setprofile(watch)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
print("STEPS", json.dumps(steps))
"""


@dataclass(frozen=True)
class Module:
    name: str
    text: str

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def room(self) -> str:
        return [*self.name.split("."), PACKAGE][1]

    @cached_property
    def tree(self) -> ast.Module:
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


def trace_calls(folder: Path, words: list[str], names: list[str]) -> list[list[str]]:
    """Files that every call of ``names`` calls into and comes back from, in order."""
    asked = json.dumps([str(folder / "build/house"), words, names])
    done = subprocess.run(
        [sys.executable, "-c", TRACED, asked],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        | {"DSV4KV_CORE": "python"},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = [line for line in done.stdout.splitlines() if line.startswith("STEPS ")]
    if not printed:
        raise SystemExit(f"The {words[0]} that is looked at did not run:\n{done.stderr}")
    steps: list[list[str]] = json.loads(printed[-1].removeprefix("STEPS "))
    return steps


def count_changes(step: list[str]) -> int:
    """How often a call or a return goes to another room."""
    return sum(a.split("/")[0] != b.split("/")[0] for a, b in pairwise(step))


def list_measures(folder: Path) -> list[tuple[str, str]]:
    """Every measure by name."""
    modules = read_modules(folder)
    lengths = sorted(lines for module in modules for lines in module.functions)
    ninetieth = lengths[len(lengths) * 9 // 10]
    short, lonely, lonely_lines = count_lonely(modules)
    step = [step for step in trace_calls(folder, *STEP) if len(step) > 100][-1]
    rooms = {path.split("/")[0] for path in step}
    replays = [
        [*chain.from_iterable(trace_calls(folder, [*REPLAY, rule, *V41 * ("41" in rule)], SERVED))]
        for rule in RULES
    ]
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
        ("a decode step: rooms", f"{len(rooms):,}"),
        ("a decode step: changes of room", f"{count_changes(step):,}"),
        (
            f"a request through replay, set-up included: changes of room by {', '.join(RULES)}",
            ", ".join(map(str, map(count_changes, replays))),
        ),
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
