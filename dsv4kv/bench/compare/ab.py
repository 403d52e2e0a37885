"""A against B on this machine, now: steps or launches interleaved, so that both see the same."""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Literal

from dsv4kv.bench.compare.comparison import Side
from dsv4kv.bench.launches import OnProgress, Outcome, Task, merge, run_launches
from dsv4kv.config.load import LoadedConfig, expand_axes, find_config, load_config
from dsv4kv.errors import ConfigError
from dsv4kv.files import temporary_folder
from dsv4kv.processes import OWN_TREE, run_bounded
from dsv4kv.runs.environment import capture_environment
from dsv4kv.runs.points import as_options
from dsv4kv.runs.store import new_run_id

HERE = "."
_GIT_TIMEOUT_S = 600.0
_CLONE = "run --ab with revisions in a clone of dsv4kv, or name two configurations or backends."


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with the files of a revision; ``.`` is the source tree as it is now.

    Raises:
        ConfigError: Not a revision, not in a source tree of dsv4kv, or git refuses.
    """
    top = _git("rev-parse", "--show-toplevel", doing=f"find the source tree that {revision} is of")
    if revision == HERE:
        yield _with_package(Path(top), revision)
        return
    asked, doing = f"{revision}^{{commit}}", f"find the revision {revision}"
    commit = _git("rev-parse", "--verify", "--end-of-options", asked, doing=doing)
    with temporary_folder("dsv4kv-revision-") as folder:
        tree, doing = folder / commit[:12], f"check out {revision}"
        # not a work tree: a process that is killed would leave its name in the repository
        _git("clone", "--shared", "--no-checkout", top, str(tree), doing=doing)
        _git("-C", str(tree), "checkout", "--detach", commit, doing=doing)
        yield _with_package(tree, revision)


def _with_package(tree: Path, revision: str) -> Path:
    if not (tree / "dsv4kv" / "__main__.py").is_file():
        raise ConfigError(f"{revision} holds no dsv4kv: {_CLONE}")
    return tree


def _git(*arguments: str, doing: str) -> str:
    # Inside a git hook, GIT_DIR and GIT_INDEX_FILE would point git elsewhere.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = "git", *arguments
    try:
        code, printed = run_bounded(command, environment, _GIT_TIMEOUT_S, stderr=subprocess.STDOUT)
    except OSError as error:
        raise ConfigError(f"git cannot be run ({error.strerror}): install it.") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"git could not {doing}: it did not end, and was killed.") from None
    last = printed.strip().rpartition("\n")[2]
    if code and "not a git repository" in last:
        raise ConfigError(f"git could not {doing}: {_CLONE}")
    if code:
        raise ConfigError(f"git could not {doing}: {last or 'it does not say why'}.")
    return last


Unit = Literal["step", "launch"]

NAMES = ("A", "B")

# Launches of each side in a block, at least. Fewer would let what comes and goes keep step with a
# side for long; seven and fewer are one block, in which no order is likelier than another.
_BLOCK = 4

_KINDS = ("config", "backend", "git")
_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Duel:
    """Two things to run interleaved."""

    references: tuple[str, str]  # what was named for A and for B
    config: str | None
    """What both run; None takes the default, or is not there where A and B are configurations."""
    overrides: Sequence[str]  # ``a.b=c`` settings of both
    axes: Sequence[str]  # ``a.b=1,2`` sweeps of both
    launches: int  # of each side
    argv: list[str]
    order_seed: int  # of the order in which they run
    turns: Unit | None = None
    """What alternates. Steps: a launch of each side at the same time, which takes the memory of
    two. Launches: one process at a time. None: steps, except on a GPU."""

    @property
    def kind(self) -> str:
        """``git``, ``config`` or ``backend``: what A and B are, and may differ in."""
        kinds = [_parse(reference)[0] for reference in self.references]
        if kinds[0] != kinds[1]:
            raise ConfigError(
                f"--ab {' '.join(self.references)}: one is a {kinds[0]}, the other a {kinds[1]}: "
                "name two revisions, two configurations or two backends."
            )
        return kinds[0]


_Plan = tuple[Task, LoadedConfig]


def run_duel(duel: Duel, on_progress: OnProgress) -> tuple[tuple[Side, Side], bool]:
    """Run both sides interleaved: side A and side B, and whether Ctrl-C ended it early.

    Raises:
        ConfigError: A reference, revision or configuration that cannot be used.
        Dsv4kvError: The first launch of a side was refused.
    """
    if duel.kind == "config" and duel.config is not None:
        raise ConfigError(f"--config {duel.config}: A and B are the configurations: leave it out.")
    with ExitStack() as stack:  # revisions are checked out as long as the block lasts
        plans = [_plan(duel, index, stack) for index in range(2)]
        unit = duel.turns
        if unit is None:  # two caches fit into a host's memory; a GPU's is filled by one
            on_host = all(loaded.config.device == "cpu" for _, loaded in plans)
            no_gpu = on_host or capture_environment()["versions"]["driver"] is None
            unit = "step" if no_gpu else "launch"
        order = draw_order(duel.launches, unit, duel.order_seed)
        tasks = [plans[side][0] for side in order]
        outcomes = run_launches(tasks, on_progress, together=2 if unit == "step" else 1)
    asked = 2 * duel.launches
    interrupted = len(outcomes) < asked or any(outcome.interrupted for outcome in outcomes)
    sides = tuple(_side(duel, plan, outcomes) for plan in plans)
    return (sides[0], sides[1]), interrupted


def draw_order(launches: int, unit: Unit, seed: int) -> list[int]:
    """Which side runs when, 0 or 1, drawn at random: either is first as often, in blocks."""
    random = Random(seed)
    if unit == "step":
        firsts = [pair % 2 for pair in range(launches)]
        random.shuffle(firsts)
        return [side for first in firsts for side in (first, 1 - first)]
    blocks = max(1, launches // _BLOCK)
    order: list[int] = []
    for block in range(blocks):
        size = launches * (block + 1) // blocks - launches * block // blocks
        order += random.sample([0, 1] * size, 2 * size)
    return order


def _parse(reference: str) -> tuple[str, str]:
    """Kind and value: ``backend:cpu``, ``config:smoke``, ``mine.yaml``, ``git:main``, ``main``."""
    kind, _, value = reference.partition(":")
    if kind in _KINDS and value:
        return kind, value
    return ("config" if reference.endswith(_YAML) else "git"), reference


def _plan(duel: Duel, index: int, stack: ExitStack) -> _Plan:
    kind, value = duel.kind, _parse(duel.references[index])[1]
    overrides = [*duel.overrides]
    if kind == "backend":
        overrides.append(f"backend={json.dumps(value)}")
        if any("gather_" in reference.rpartition(":")[2] for reference in duel.references):
            overrides.insert(0, "workload.step=gather")  # which both sides then do
    loaded = load_config(value if kind == "config" else duel.config, overrides)
    expand_axes(loaded, overrides, duel.axes)
    # both revisions run this text, not whatever each has under that name
    source = str(find_config(loaded.source).resolve()) if kind == "git" else loaded.source
    tree = stack.enter_context(checked_out(value)) if kind == "git" else OWN_TREE
    arguments = source, *as_options(overrides, duel.axes)
    return Task(arguments, tree, NAMES[index]), loaded


def _side(duel: Duel, plan: _Plan, outcomes: Sequence[Outcome]) -> Side:
    words = ["dsv4kv", "compare", "--ab", *duel.references]
    words += ["--config", duel.config] if duel.config else []
    words += as_options(duel.overrides, duel.axes)
    words += ["--turns", duel.turns] if duel.turns else []
    words += ["--launches", str(duel.launches)]
    task, loaded = plan
    own = [outcome for outcome in outcomes if outcome.task.side == task.side]
    run_id = new_run_id(loaded.config.name, own[0].started if own else datetime.now(UTC))
    known = {"run_id": run_id, "argv": duel.argv, "reproduce": shlex.join(words)}
    reference = duel.references[NAMES.index(task.side)]
    record = merge(own, duel.launches, loaded, **known)
    return Side(f"{task.side} ({reference})", (record,))
