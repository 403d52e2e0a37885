"""What is to be profiled, by whom and why, and the command line of it."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from dsv4kv.bench.device import find_device
from dsv4kv.config.load import LoadedConfig
from dsv4kv.errors import ConfigError
from dsv4kv.measure.profilers.attached import has_nvtx
from dsv4kv.measure.profilers.commands import (
    Command,
    find_tool,
    ncu_profile,
    nsys_profile,
    require_tool,
)
from dsv4kv.report.names import new_run_id

Tool = Literal["nsys", "ncu", "torch"]
_PACKAGES = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_STEPS = {"nsys": 10, "torch": 10, "ncu": 1}
RUN, OUTPUT = "run.json", "step"
"""In a profile's folder: what the profiled program tells, and the profiler's file less suffix."""


@dataclass(frozen=True)
class Plan:
    """What will be profiled, and how.

    Attributes:
        loaded: The configuration, overrides applied.
        overrides: ``a.b=c`` options, in effect.
        argv: The command line.
        tool: Who profiles.
        why: Why this one.
        steps: Decode steps to look at; None takes the tool's own number.
        folder: Where the profiler's files go.
        kernels: Kernels that ncu is to look at, by a regular expression; None is all.
        timeout_s: When a profiler is ended.
    """

    loaded: LoadedConfig
    overrides: Sequence[str]
    argv: Sequence[str]
    tool: Tool
    why: str
    steps: int | None
    folder: Path
    kernels: str | None
    timeout_s: float

    @property
    def num_steps(self) -> int:
        """Decode steps to look at."""
        return self.steps or _STEPS[self.tool]


def choose_tool(wanted: Tool | None, device: str) -> tuple[Tool, str]:
    """The profiler to use, and why; ``device`` is ``auto``, ``cpu`` or ``cuda``."""
    if wanted is not None:
        return wanted, f"asked for with --{wanted}"
    nsys = find_tool("nsys")
    if find_device(device) is None:
        return "torch", "torch.profiler, since there is no GPU"
    if nsys is None:
        return "torch", "torch.profiler, since nsys is not on PATH"
    return "nsys", f"nsys, since it is on PATH ({nsys})"


def name_folder(loaded: LoadedConfig, out: Path) -> Path:
    """A new folder for the files of one profile; it is named as the run."""
    return out / new_run_id(f"profile-{loaded.config.name}", datetime.now(UTC))


def make_command(plan: Plan) -> Command:
    """The profiler's command line.

    Raises:
        ProfileError: It is not installed.
        ConfigError: It has none, as it runs inside the process.
    """
    program = [sys.executable, "-m", "dsv4kv", "profile", plan.loaded.source]
    program += [word for each in plan.overrides for word in ("--set", each)]
    program += ["--steps", str(plan.num_steps), "--child", str(plan.folder / RUN)]
    output = plan.folder / OUTPUT
    if plan.tool == "torch":
        raise ConfigError(
            "torch.profiler runs inside the process and has no command line: add --nsys or --ncu."
        )
    path = require_tool(plan.tool, _PACKAGES[plan.tool])
    if plan.tool == "nsys":
        return nsys_profile(path, output, program)
    return ncu_profile(path, output, program, plan.kernels, own_domain=has_nvtx())


def reproduce(plan: Plan) -> str:
    """The command line that profiles so again."""
    words = ["dsv4kv", "profile", plan.loaded.source, f"--{plan.tool}"]
    words += [word for each in plan.overrides for word in ("--set", each)]
    return shlex.join([*words, "--steps", str(plan.num_steps)])
