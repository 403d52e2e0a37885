"""What the shell offers at the tab key: names, each with what it does."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dsv4kv.choices import Explained

Offer = list[tuple[str, str]]
Names = Mapping[str, Explained] | Iterable[str]


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
        from dsv4kv.config.bench import BenchConfig
        from dsv4kv.config.keys import keys
        from dsv4kv.config.replay import ReplayConfig

        known = keys(ReplayConfig if kind == "replay" else BenchConfig)
        path, given, value = incomplete.partition("=")
        if not given:
            rows = known.values()
            return [
                (f"{key.path}=", key.description)
                for key in rows
                if not key.is_section and key.path.startswith(incomplete)
            ]
        if path not in known:
            return []
        key = known[path]
        values = dict.fromkeys(key.choices or _BOOLEANS.get(key.type, ()), "")
        values |= {"null": "nothing"} if key.nullable else {}
        return [
            (f"{path}={name}", told) for name, told in _matching(values, value, several=several)
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
    return [(f"{name}={each}", told) for each, told in found]


def offer_runs(incomplete: str) -> Offer:
    """Complete to a saved run of ``results/``, the newest first."""
    names = sorted((path.stem for path in Path("results").glob("*.json")), reverse=True)
    return _matching(dict.fromkeys(["last", *names], ""), incomplete)


_BOOLEANS = {"true or false": ("true", "false")}


def _explained(names: Names) -> dict[str, str]:
    if isinstance(names, Mapping):
        return {name: getattr(row, "explains", "") for name, row in names.items()}
    return dict.fromkeys(names, "")


def _matching(names: Mapping[str, str], incomplete: str, *, several: bool = False) -> Offer:
    """Names that go on as what was typed; with ``several`` as what follows its last comma."""
    before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
    given = before.split(",")
    return [
        (f"{before}{comma}{name}", told)
        for name, told in names.items()
        if name.startswith(last) and name not in given
    ]
