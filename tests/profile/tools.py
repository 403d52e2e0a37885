"""Fake profilers: scripts that are called ``nsys`` and ``ncu`` and do as a test wants.

They keep what they were told: the arguments of every call, and the environment they saw.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """#!{python}
import json, os, pathlib, shutil, subprocess, sys, time
plan = json.loads(pathlib.Path({plan!r}).read_text())
kept = pathlib.Path({kept!r})
arguments = sys.argv[1:]
called = kept / f"{{len(list(kept.iterdir())):03}}.json"
called.write_text(json.dumps({{"arguments": arguments, "environment": dict(os.environ)}}))
verb = arguments[0] if arguments and not arguments[0].startswith("-") else "profile"
if "--help" in arguments:
    print(plan["help"].get(verb, ""))
    sys.exit(0)
if "--version" in arguments:
    print(plan["version"])
    sys.exit(0)
step = plan.get(verb, {{}})
print(step.get("says", ""), flush=True)
output = [one.partition("=")[2] for one in arguments if one.startswith(("--output=", "--export="))]
program = arguments[arguments.index({python!r}):] if {python!r} in arguments else []
if step.get("runs") and program:
    code = subprocess.run(program).returncode
    if code:
        sys.exit(code)
if step.get("writes"):
    suffix = "" if verb == "export" else {suffix!r}
    shutil.copyfile(step["writes"], output[0] + suffix)
if step.get("hangs"):
    pathlib.Path(output[0] + ".part").write_text("half")
    if step["hangs"] == "deaf":
        import signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (kept / "hanging").touch()
    time.sleep(600)
sys.exit(step.get("code", 0))
"""

NSYS_HELP = """
  --trace= --sample= --cpuctxsw= --cuda-graph-trace= --capture-range= --capture-range-end=
  --discard-environment= --force-overwrite= --output=
"""
EXPORT_HELP = "--type= --lazy= --force-overwrite= --output="
NCU_HELP = "--graph-profiling --cache-control --clock-control --force-overwrite --metrics --nvtx"


class Tool:
    """A fake profiler on PATH.

    ``plan``: what it does, by its verb: ``says``, ``writes`` (a file to copy), ``runs`` (the
    program, too), ``hangs``, ``code``.
    """

    def __init__(self, folder: Path, name: str, plan: dict[str, Any]) -> None:
        self.name, self.plan, self.path = name, plan, folder / name
        self._kept, self._plan_file = folder / f"{name}-calls", folder / f"{name}.json"
        self._kept.mkdir(parents=True)
        self._plan_file.write_text(json.dumps(plan))
        places = {"plan": str(self._plan_file), "kept": str(self._kept), "suffix": f".{name}-rep"}
        self.path.write_text(_SCRIPT.format(python=sys.executable, **places))
        self.path.chmod(0o755)

    def does(self, verb: str, **what: Any) -> None:
        self.plan[verb] = {key: os.fspath(v) if key == "writes" else v for key, v in what.items()}
        self._plan_file.write_text(json.dumps(self.plan))

    def calls(self) -> list[list[str]]:
        """Arguments of every call that was not a question."""
        found: list[list[str]] = [each["arguments"] for each in self._told()]
        return [words for words in found if not {"--help", "--version"} & set(words)]

    def environments(self) -> list[dict[str, str]]:
        """What every call saw."""
        return [each["environment"] for each in self._told()]

    @property
    def is_hanging(self) -> bool:
        return (self._kept / "hanging").exists()

    def _told(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self._kept.glob("*.json"))]


def install(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **helps: str) -> Tool:
    """Put a fake ``nsys`` or ``ncu`` first on PATH, in a folder with a blank and a quote."""
    place = folder / "it's a tool"
    versions = {
        "nsys": "NVIDIA Nsight Systems version 2025.5.1.121-255136380782v0",
        "ncu": "NVIDIA (R) Nsight Compute\nVersion 2025.3.1.0 (build 1)",
    }
    known = {"profile": NSYS_HELP if name == "nsys" else NCU_HELP, "export": EXPORT_HELP}
    tool = Tool(place, name, {"help": known | helps, "version": versions[name]})

    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return tool
