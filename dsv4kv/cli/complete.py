"""What the shell offers at the tab key: names, each with what it does."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import typer

import dsv4kv
from dsv4kv.choices import Explained
from dsv4kv.errors import ConfigError
from dsv4kv.resources import user_cache

Offer = list[tuple[str, str]]
Names = Mapping[str, Explained] | Iterable[str]
_PACKAGE = dsv4kv.__file__


def offer(names: Names, *others: str, several: bool = False) -> Callable[[str], Offer]:
    """Complete to a name of a registry, or of a list.

    Args:
        names: What there is; the rows of a registry explain its names.
        others: Offered, too.
        several: Whether names are given with commas between.
    """

    def complete(incomplete: str) -> Offer:
        return _matching(
            {**dict.fromkeys(others, ""), **_explained(names)}, incomplete, several=several
        )

    return complete


def offer_settings(kind: str, *, several: bool = False) -> Callable[[str], Offer]:
    """Complete ``KEY=VALUE`` of ``bench`` or ``replay``, the value where it is a choice."""

    def complete(incomplete: str) -> Offer:
        known = _settings(kind)
        path, given, value = incomplete.partition("=")
        if not given:
            return [
                (f"{each}=", hint) for each, (hint, _) in known.items() if each.startswith(path)
            ]
        names = dict(known[path][1]) if path in known else {}
        return [
            (f"{path}={name}", hint) for name, hint in _matching(names, value, several=several)
        ]

    return complete


def offer_inputs(incomplete: str) -> Offer:
    """Complete ``NAME=A,B`` of ``budget``, the values where they are names."""
    from dsv4kv.choices import ENGINES, SIZED_STATES
    from dsv4kv.model.formats import FORMATS, known_formats
    from dsv4kv.resources import shipped_names
    from dsv4kv.sizing.inputs import READERS

    named: dict[str, Names] = {
        "model": shipped_names("models"),
        "gpu": shipped_names("gpus"),
        "engine": ENGINES,
        "state": SIZED_STATES,
        **{f"{place}-format": known_formats(place) for place in FORMATS},
    }
    name, given, value = incomplete.partition("=")
    if not given:
        return [(f"{each}=", "") for each in READERS if each.startswith(incomplete)]
    found = _matching(_explained(named.get(name, ())), value, several=True)
    return [(f"{name}={each}", hint) for each, hint in found]


def offer_runs(context: typer.Context, incomplete: str) -> Offer:
    """Complete to a saved run of the folder that the command would take, the newest first."""
    names = sorted((path.stem for path in _results(context).glob("[!.]*.json")), reverse=True)
    return _matching(dict.fromkeys(["last", *names], ""), incomplete)


_Settings = dict[str, tuple[str, list[tuple[str, str]]]]
"""What every key means, and the words it can be, each with what it means."""
_BOOLEANS = {"true or false": ("true", "false")}


def _settings(kind: str) -> _Settings:
    """Keys of a configuration that take a value.

    They take a schema, which takes longer to import than anyone waits for a shell: so what was
    found is kept in the user's cache, with the files of ours that it was made from.
    """
    folder = user_cache()
    path = folder / f"settings-{kind}.json" if folder else None
    found = path and _read_settings(path)
    if not found:
        found = _schema_settings(kind)
        if path:
            _keep_settings(path, found)
    return found


def _read_settings(path: Path) -> _Settings | None:
    """What was kept; None if there is nothing, or it was made from other files than there are."""
    from dsv4kv.files import read_private

    try:
        kept = json.loads(read_private(path))
        if kept["package"] == _PACKAGE and kept["made_from"] == _stamp(kept["made_from"]):
            settings: _Settings = kept["settings"]
            return settings
    except (OSError, ValueError, LookupError, TypeError):
        pass  # it is made anew
    return None


def _schema_settings(kind: str) -> _Settings:
    from dsv4kv.config.bench import BenchConfig
    from dsv4kv.config.keys import keys
    from dsv4kv.config.replay import ReplayConfig

    known = keys(ReplayConfig if kind == "replay" else BenchConfig).values()
    return {
        key.path: (
            key.description,
            [(word, "") for word in key.choices or _BOOLEANS.get(key.type, ())]
            + [("null", "nothing")] * key.nullable,
        )
        for key in known
        if not key.is_section
    }


def _keep_settings(path: Path, settings: _Settings) -> None:
    from dsv4kv.files import replacing

    ours = [module.__file__ for name, module in sys.modules.items() if name.startswith("dsv4kv")]
    kept = {"package": _PACKAGE, "made_from": _stamp(filter(None, ours)), "settings": settings}
    with suppress(OSError):  # another time, then
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, mode=0o600) as file:
            file.write(json.dumps(kept).encode())


def _stamp(files: Iterable[str]) -> dict[str, list[int]]:
    """When files were written and how long they are."""
    found = {file: Path(file).stat() for file in files}
    return {file: [status.st_mtime_ns, status.st_size] for file, status in found.items()}


def _results(context: typer.Context) -> Path:
    from dsv4kv.cli.command import project_of

    folder = context.params.get("folder")
    with suppress(ConfigError):  # which the command will print
        project = None if folder else project_of(context)
        if project and "results" in project.leaves:
            folder = project.path_of(str(project.leaves["results"].value))
    return Path(folder or "results")


def _explained(names: Names) -> dict[str, str]:
    if isinstance(names, Mapping):
        return {name: getattr(row, "explains", "") for name, row in names.items()}
    return dict.fromkeys(names, "")


def _matching(names: Mapping[str, str], incomplete: str, *, several: bool = False) -> Offer:
    """Names that go on as what was typed; with ``several`` as what follows its last comma."""
    before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
    given = before.split(",")
    return [
        (f"{before}{comma}{name}", hint)
        for name, hint in names.items()
        if name.startswith(last) and name not in given
    ]
