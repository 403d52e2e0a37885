"""Measures of the source tree, as a newcomer meets it; ``make house``.

Usage: ``python -m tests.house [FOLDER]``. The folder is a checkout, this one if none is given, so
that two revisions can be held next to each other.
"""

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

PACKAGE = "dsv4kv"
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

    def constructs(self, *names: str) -> bool:
        """Whether one of these is called."""
        return any(
            isinstance(node, ast.Call)
            and (getattr(node.func, "id", "") in names or getattr(node.func, "attr", "") in names)
            for node in ast.walk(ast.parse(self.text))
        )


def read_modules(folder: Path) -> list[Module]:
    """Every module of the package in a checkout."""
    return [
        Module(".".join(path.relative_to(folder).with_suffix("").parts), path.read_text("utf-8"))
        for path in sorted((folder / PACKAGE).rglob("*.py"))
    ]


def count_lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


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
    step = [step for step in trace_calls(folder, *STEP) if len(step) > 100][-1]
    rooms = {path.split("/")[0] for path in step}
    replays = [
        [*chain.from_iterable(trace_calls(folder, [*REPLAY, rule, *V41 * ("41" in rule)], SERVED))]
        for rule in RULES
    ]
    tables = {m.room for m in modules if m.constructs("Table", "new_table", "add_column")}
    command_lines = sum(module.lines for module in modules if module.room == "cli")
    return [
        ("modules", f"{len(modules):,}"),
        ("lines", f"{sum(module.lines for module in modules):,}"),
        ("lines of tests", f"{sum(map(count_lines, (folder / 'tests').rglob('*.py'))):,}"),
        ("a decode step: files", f"{len(set(step)):,}"),
        ("a decode step: rooms", f"{len(rooms):,}"),
        ("a decode step: changes of room", f"{count_changes(step):,}"),
        (
            f"a request through replay, set-up included: changes of room by {', '.join(RULES)}",
            ", ".join(map(str, map(count_changes, replays))),
        ),
        ("rooms in which tables are made", f"{len(tables)}: {', '.join(sorted(tables))}"),
        ("lines of cli", f"{command_lines:,}"),
    ]


def main() -> None:
    """Print them as a Markdown table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    print("| measure | |\n|---|---|")
    for name, value in list_measures(folder):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
