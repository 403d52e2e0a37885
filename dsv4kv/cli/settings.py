"""What a project's settings stand for, and how they take the place of options left out.

The command line comes first, then a configuration that it names, then the project's settings, then
what is shipped.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4kv.choices import listed
from dsv4kv.cli import bench, replay
from dsv4kv.cli.project import Leaf, Project, shown
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.document import Document, Placed, gather, read_document
from dsv4kv.config.keys import Root
from dsv4kv.config.load import load_config, shipped_names
from dsv4kv.config.render import on_one_line
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.engines.registry import find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.sizing.gpus import load_gpu
from dsv4kv.sizing.inputs import READERS
from dsv4kv.sizing.lookup import find_model
from dsv4kv.view.console import open_console
from dsv4kv.view.terminal import show

if TYPE_CHECKING:
    from typer._click import Context
    from typer.core import TyperCommand

Params = dict[str, Any]


@dataclass(frozen=True)
class Common:
    """A setting of several commands.

    Attributes:
        explains: What it is.
        options: The parameter that it fills, by command.
        keys: The key that it sets, by kind of configuration.
    """

    explains: str
    options: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


_RUNS = dict.fromkeys(("bench", "compare", "profile", "replay"), "out")
_FOLDERS = dict.fromkeys(("results list", "results show", "results prune"), "folder")

COMMON = {
    "results": Common("folder of run records", _RUNS | _FOLDERS),
    "model": Common(
        "model of budget, replay and trace mrc",
        {"budget": "model", "trace mrc": "model"},
        {"replay": "model.preset"},
    ),
    "gpu": Common("GPU of budget and replay", {"budget": "gpu"}, {"replay": "cost.gpu"}),
    "engine": Common("engine of budget", {"budget": "engine"}),
    "device": Common("device of bench, compare --ab and profile", keys={"bench": "device"}),
}
OWN = {
    "bench": {"launches": "launches"},
    "budget": {name: name.replace("-", "_") for name in READERS},
}
"""Settings of one command, below its name, and the parameters that they fill."""

_READERS: dict[str, Callable[[str], object]] = {
    **READERS,
    "engine": find_engine,
    "gpu": load_gpu,
    "launches": READERS["gpus"],
    "model": find_model,
    "results": str,
}
_PATHS = ("model", "model.preset", "workload.trace", "cost.peaks")
"""May be files, which are then looked for next to the settings first."""
_KINDS: dict[str, Root] = {"bench": BenchConfig, "replay": ReplayConfig}


@dataclass(frozen=True)
class Sets:
    """A command that runs a configuration, which ``set`` changes.

    Attributes:
        kind: Of what kind the configuration is.
        shorthands: Keys that parameters of the command stand for.
        runs: Whether it runs one, by its parameters.
    """

    kind: str
    runs: Callable[[Params], bool]
    shorthands: Mapping[str, str] = field(default_factory=dict)


_SETS = {
    "bench": Sets("bench", lambda given: given["config"] not in bench.OWN, bench.SHORTHANDS),
    "compare": Sets("bench", lambda given: bool(given["ab"])),
    "config show": Sets("bench", lambda _: True),
    "profile": Sets("bench", lambda given: not any(given[x] for x in ("from_", "diff", "child"))),
    "replay": Sets("replay", lambda given: not given["schema"], replay.SHORTHANDS),
}
_INSTEAD = {
    "gpu": "hbm",
    "hbm": "gpu",
    "weights": "weight_bytes_per_param",
    "weight_bytes_per_param": "weights",
}
"""Of two options that say the same, the one that is given counts."""
_SECTIONS = (*OWN, *_KINDS, *(f"{kind}.set" for kind in _KINDS))


def fill(
    project: Project, command: "TyperCommand", ctx: "Context", parse: Callable[[], list[str]]
) -> list[str]:
    """Parse a command line; what it leaves out has the project's values.

    Raises:
        ConfigError: There is no such setting, or a value is not of its kind.
    """
    _check_names(project)
    name = ctx.command_path.partition(" ")[2]
    options = _options(project, name)
    ctx.default_map = {param: _read(project, setting) for param, setting in options.items()}
    rest = parse()
    used = [setting for param, setting in options.items() if _counts(ctx, param)]
    sets = _SETS.get(name)
    if sets and sets.runs(ctx.params):
        (param,) = (str(each.name) for each in command.params if "--set" in each.opts)
        given = ctx.params[param] or []
        changes = _changes(project, sets, ctx.params, given)
        ctx.params[param] = [*changes.values(), *given]
        used += changes
    if used and not ctx.params.get("quiet"):
        sources = listed(f"{setting} {_value_text(project.leaves[setting])}" for setting in used)
        show([f"settings: {shown(project.path)} ({sources})"], open_console(stderr=True))
    return rest


def check(project: Project) -> None:
    """Try every setting, as a command would that needs it.

    Raises:
        ConfigError: There is no such setting, or a value is not of its kind; a line each.
    """
    _check_names(project)
    gather(partial(_read, project), [name for name in project.leaves if _is_option(name)])
    for kind, root in _KINDS.items():
        changes = _all_changes(project, kind).items()
        load_config(None, [_as_change(project, *each) for each in changes], root)


def explain(setting: str) -> str:
    """What a setting is."""
    if setting in COMMON:
        return COMMON[setting].explains
    section, _, name = setting.partition(".")
    return f"{name.removeprefix('set.')} of {section}"


def _check_names(project: Project) -> None:
    wrong = [
        f"{leaf.place}: {_unknown(path)}"
        for path, leaf in project.leaves.items()
        if not (_is_option(path) or _is_change(path) or (path in _SECTIONS and not leaf.value))
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))


def _is_option(path: str) -> bool:
    section, _, name = path.partition(".")
    return path in COMMON or name in OWN.get(section, ())


def _is_change(path: str) -> bool:
    return any(path.startswith(f"{kind}.set.") for kind in _KINDS)


def _unknown(path: str) -> str:
    own = [f"{section}.{name}" for section, names in OWN.items() for name in names]
    close = get_close_matches(path, [*COMMON, *own], 1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    changes = (f"{kind}.set.KEY" for kind in _KINDS)
    return (
        f"unknown setting {path}{guess}: there are {listed(COMMON)}, bench.launches, "
        f"budget.OPTION, {listed(changes)}."
    )


def _options(project: Project, command: str) -> dict[str, str]:
    """Settings that fill parameters of a command; its own count before common ones."""
    common = {row.options[command]: name for name, row in COMMON.items() if command in row.options}
    own = {param: f"{command}.{name}" for name, param in OWN.get(command, {}).items()}
    every = [*common.items(), *own.items()]
    return {param: name for param, name in every if _value(project, name) is not None}


def _value(project: Project, setting: str) -> Any:
    return project.leaves[setting].value if setting in project.leaves else None


def _read(project: Project, setting: str) -> str:
    """A setting as the command line has it; raises ``ConfigError`` with its place."""
    leaf, name = project.leaves[setting], setting.rpartition(".")[2]
    if isinstance(leaf.value, bool) or not isinstance(leaf.value, str | int | float):
        raise ConfigError(
            f"{leaf.place}: {setting} is {_value_text(leaf)}: write text or a number."
        )
    text = str(_from_here(project, name, leaf.value))
    try:
        _READERS.get(name, str)(text)
    except ConfigError as error:
        raise ConfigError(f"{leaf.place}: {setting}: {error}") from None
    return text


def _from_here(project: Project, name: str, value: Any) -> Any:
    """Paths are those of the folder that the settings are in."""
    if not isinstance(value, str):
        return value
    path = project.path_of(value)
    return str(path) if name == "results" or (name in _PATHS and path.exists()) else value


def _value_text(leaf: Leaf) -> str:
    return on_one_line(leaf.value)


def _counts(ctx: "Context", param: str) -> bool:
    """Whether a setting fills its parameter; what is given instead takes it away again."""
    if not _is_from(ctx, param, "DEFAULT_MAP"):
        return False
    other = _INSTEAD.get(param, "")
    swept = {text.partition("=")[0].replace("-", "_") for text in ctx.params.get("axis") or ()}
    unused = ctx.params.get("explain") or {param, other} & swept or _is_from(ctx, other)
    if unused:
        ctx.params[param] = None
    return not unused


def _is_from(ctx: "Context", param: str, source: str = "COMMANDLINE") -> bool:
    found = ctx.get_parameter_source(param)
    return found is not None and found.name == source


def _all_changes(project: Project, kind: str) -> dict[str, str]:
    """Settings of a configuration, by key; its own count before common ones."""
    common = {row.keys[kind]: name for name, row in COMMON.items() if kind in row.keys}
    prefix = f"{kind}.set."
    own = {name.removeprefix(prefix): name for name in project.leaves if name.startswith(prefix)}
    return {key: name for key, name in (common | own).items() if name in project.leaves}


def _as_change(project: Project, key: str, setting: str) -> Placed:
    leaf = project.leaves[setting]
    value = _from_here(project, key, leaf.value)
    return Placed(f"{key}={json.dumps(value, default=str)}", leaf.place)


def _changes(
    project: Project, sets: Sets, given: Params, overrides: Iterable[str]
) -> dict[str, Placed]:
    """What the project sets of a configuration and nobody else does, by setting."""
    taken = {text.partition("=")[0].strip() for text in (*overrides, *(given.get("axis") or ()))}
    taken |= {key for param, key in sets.shorthands.items() if given[param] is not None}
    files = list(_named_files(given, _KINDS[sets.kind]))
    return {
        setting: _as_change(project, key, setting)
        for key, setting in _all_changes(project, sets.kind).items()
        if key not in taken and not any(file.has(tuple(key.split("."))) for file in files)
    }


def _named_files(given: Params, root: Root) -> Iterator[Document]:
    """Configurations of a command line, as far as they are files that can be read."""
    for name in (given.get("config"), given.get("source"), *(given.get("ab") or ())):
        with suppress(ConfigError):  # which the command says better
            if name and name not in shipped_names(root) and Path(name).is_file():
                yield read_document(load_config(name, (), root).text, name, root)
