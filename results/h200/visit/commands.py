"""The commands of ``visit.sh``: the calls of a visit, and what they found."""

import argparse
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from dsv4kv.cli import on_endings
from dsv4kv.errors import INTERRUPTED
from dsv4kv.files import temporary_folder
from visit import report
from visit.conductor import ROWS, Conductor, open_desk
from visit.desk import NO_TOOL, NoTool
from visit.plan import CALLS, MOST_S, QUESTIONS, STEPS, Step, tell

_VISITS = Path(__file__).resolve().parents[1] / "visits"


def main() -> int:
    """Run what the command line asks for."""
    try:
        return _run()
    except KeyboardInterrupt:
        return INTERRUPTED


def _run() -> int:
    told = _parser().parse_args()
    if told.command == "plan":
        print("\n\n".join(tell(call, steps) for call, steps in CALLS.items()))
        return 0
    if told.command == "report":
        if absent := [str(file) for file in told.files if not file.is_file()]:
            raise SystemExit(f"{', '.join(absent)}: no file; give a call's rows.jsonl.")
        print(report.table(told.files, list(QUESTIONS.values())))
        return 0
    if told.command == "step":
        return _be_step(told)
    if told.rehearse:
        from visit.simulation import rehearse

        return rehearse(told.command, told.out, told.steps)
    return _call(told.command, told.out, told.steps, small=told.twin)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("visit.sh", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plan", help="every call, its steps and their limits")
    reporting = commands.add_parser("report", help="what was predicted, wanted and measured")
    reporting.add_argument("files", nargs="*", type=Path, metavar="FILE", help="rows.jsonl")
    for call, steps in CALLS.items():
        calling = commands.add_parser(call, help=", ".join(step.name for step in steps))
        out = os.environ.get("OUT", _VISITS / call)
        calling.add_argument("--out", type=Path, default=out, help="folder of the answers: $OUT")
        calling.add_argument("--steps", type=_names, default=None, help="only these: facts,speeds")
        calling.add_argument("--rehearse", action="store_true", help="on the CPU, in a copy")
        calling.add_argument("--twin", action="store_true", help="on the CPU, here")
    step = commands.add_parser("step")
    step.add_argument("name", choices=STEPS)
    step.add_argument("--rows", type=Path, required=True)
    step.add_argument("--folder", type=Path, required=True)
    step.add_argument("--twin", action="store_true")
    return parser


def _names(text: str) -> list[str]:
    return text.split(",")


def _call(call: str, out: Path, names: Sequence[str] | None, *, small: bool) -> int:
    steps = [step for step in CALLS[call] if names is None or step.name in names]
    if unknown := set(names or ()) - {step.name for step in steps}:
        known = ", ".join(step.name for step in CALLS[call])
        raise SystemExit(f"{', '.join(unknown)}: no step of the {call} call; it has {known}.")
    print(tell(call, steps), flush=True)
    on_endings()
    with temporary_folder("dsv4kv-visit-") as folder:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        whole = Conductor(out.resolve(), folder, environment, small=small).run(steps, MOST_S)
    asked = [question for step in steps for question in step.questions]
    print(report.table([out / ROWS], asked))
    return 0 if whole else 1


def _be_step(told: argparse.Namespace) -> int:
    step: Step = STEPS[told.name]
    name, _, argument = step.program.partition(":")
    program = importlib.import_module(f"visit.{name}")
    desk = open_desk(step, told.rows, told.folder, small=told.twin)
    try:
        program.run(desk, argument) if argument else program.run(desk)
    except NoTool as lacking:
        print(lacking)
        return NO_TOOL
    return 0
