"""A launch command: what its flags and variables mean, and what each of them costs."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4kv.budget.answer import Answer
from dsv4kv.budget.fit import max_concurrency, tightest_free_bytes
from dsv4kv.budget.flags import GivenFlag, merge, read_flag
from dsv4kv.budget.inputs import read_inputs
from dsv4kv.budget.scenario import fix_layout, resolve
from dsv4kv.budget.servers import Launch, find_launches
from dsv4kv.engines.flags import Texts, find_flag
from dsv4kv.engines.logs.read import preset_named
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.files import open_regular
from dsv4kv.model.presets import config_file

_MOST_CHARACTERS = 2**18
_UNSET = re.compile(r"\$\{?\w+\}?|\{\{?\s*\w+\s*\}?\}")
_LAYOUT = {"model", "tp", "dp", "pp", "ep", "dp-attention", "context"}


@dataclass(frozen=True)
class Reading:
    """A launch command, read; of its variables those that an engine knows."""

    launch: Launch
    flags: tuple[GivenFlag, ...]
    texts: Texts

    @property
    def counted(self) -> list[GivenFlag]:
        """Flags that are used."""
        return [each for each in self.flags if each.flag and each.flag.means]

    @property
    def uncounted(self) -> list[GivenFlag]:
        """Flags that change sizes and are not counted."""
        return [each for each in self.flags if each.flag and not each.flag.means]

    @property
    def unknown(self) -> list[GivenFlag]:
        """Flags that are not known to change sizes."""
        return [each for each in self.flags if each.flag is None]


def read_command(given: str, which: str | None = None, model: str | None = None) -> Reading:
    """Read a launch command, or a file with one.

    Of several commands ``which`` is its number from 1 or a part of it; ``model`` is what it
    serves, where its own name for the model does not say.

    Raises:
        ConfigError: No command, several without a choice, or a value that cannot be read.
    """
    source, text = _text_of(given)
    try:
        launches = list(find_launches(text))
        return _interpret(_choose(launches, which), model)
    except ConfigError as error:
        if str(error).startswith("--which"):  # is about the option, not about the text
            raise
        raise ConfigError(f"{source}: {error}") from None


def read_commands(given: str, model: str | None = None) -> list[Reading]:
    """Read every different launch command of a text or a file; raises ``ConfigError``."""
    source, text = _text_of(given)
    try:
        launches = list(find_launches(text))
        _choose(launches, "1")  # refuses none
        different = {
            (each.family, each.flags, tuple(each.variables.items())): each for each in launches
        }
        return [_interpret(each, model) for each in different.values()]
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _text_of(given: str) -> tuple[str, str]:
    path = Path(given) if len(given) < 1000 and "\n" not in given else None
    try:
        if path is not None and path.is_file():
            with open_regular(path) as file:
                text = file.read(_MOST_CHARACTERS + 1).decode("utf-8", "replace")
            if len(text) > _MOST_CHARACTERS:
                raise ConfigError(f"{given}: no launch command is longer than 256 KiB.")
            return given, text
    except (OSError, ValueError) as error:
        raise ConfigError(f"{given[:60]!r} cannot be read: {error}.") from None
    if not given.strip():
        raise ConfigError("--command: it is empty: give a launch command, or a file with one.")
    if " " not in given.strip() and re.search(r"\.(sh|ya?ml|json|txt)$|/", given):
        raise ConfigError(f"--command {given[:200]}: there is no such file.")
    return "--command", given[:_MOST_CHARACTERS]


def _choose(launches: list[Launch], which: str | None) -> Launch:
    if not launches:
        raise ConfigError(
            "no launch command: looked for vllm serve, sglang serve, python -m "
            "sglang.launch_server, trtllm-serve, an image of theirs, or a mapping of their flags."
        )
    listed = "; ".join(
        f"{number}: {launch.title} (line {launch.line})"
        for number, launch in enumerate(launches, 1)
    )
    if which is None:
        first = launches[0]
        if any(
            (each.family, each.flags, each.variables)
            != (first.family, first.flags, first.variables)
            for each in launches
        ):
            raise ConfigError(
                f"{len(launches)} commands: choose with --which, a number or a part of it: "
                f"{listed}."
            )
        return first
    if which.isdecimal() and 1 <= int(which) <= len(launches):
        return launches[int(which) - 1]
    found = [launch for launch in launches if which in f"{launch.title} {launch.flags}"]
    if len(found) != 1:
        raise ConfigError(f"--which {which}: {len(found)} commands have that: {listed}.")
    return found[0]


def _interpret(launch: Launch, model: str | None = None) -> Reading:
    family = launch.family
    flags: list[GivenFlag] = []
    for name, value in launch.variables.items():
        flag = find_flag(family, name)
        if flag and flag.is_variable:
            flags.append(read_flag(family, name, _set(name, value)))
    for spelling, value in launch.flags:
        flag = find_flag(family, spelling)
        if flag and flag.means and not flag.switch and not value:
            raise ConfigError(f"{spelling}: the value is missing.")
        flags.append(read_flag(family, spelling, _set(spelling, value) if flag else value))
    texts = {"tp": "1", "dp": "1", "pp": "1"} | _merged(launch, flags)
    named = model or texts.get("model", "")
    if "model" in texts and not (model or preset_named(named) or config_file(named)):
        raise ConfigError(
            f"--model {named[:100]}: which model that is is not clear: add --model "
            "v4-flash, another preset, or the path of its config.json."
        )
    name = f"{family}:{launch.version}" if launch.version else family
    try:
        find_engine(name)
    except ConfigError:  # an unknown version: the newest one's rules
        name = family
    return Reading(launch, tuple(flags), texts | {"engine": name})


def _merged(launch: Launch, flags: Iterable[GivenFlag]) -> Texts:
    """Inputs from flags, with the preset that the model's name means."""
    texts = merge(launch.family, flags)
    if "model" in texts:
        texts["model"] = preset_named(texts["model"]) or texts["model"]
    return texts


def _set(name: str, value: str) -> str:
    """A value that is there; raises ``ConfigError`` for a variable that nothing sets."""
    if _UNSET.fullmatch(value.strip()):
        raise ConfigError(f"{name} is {value}, which nothing here sets: write its value.")
    return value


@dataclass(frozen=True)
class FlagCost:
    """Bytes of the tightest GPU that one flag takes, and requests that it makes possible.

    Against the engine's own value; either may be negative.
    """

    flag: GivenFlag
    taken_bytes: int
    requests: int


def flag_costs(reading: Reading, given: Texts, found: Answer) -> Iterator[FlagCost]:
    """Every flag that could be omitted, with its cost; ``given`` overrides the command."""
    fixed = fix_layout(found.scenario)
    sizes = {name: str(getattr(fixed, name)) for name in ("gpus", "tp", "dp", "pp", "ep")}
    scenario, asked = found.scenario, (found.context, found.concurrency)
    whole = _merged(reading.launch, reading.flags)
    kept = {name: text for name, text in reading.texts.items() if name not in whole}
    for flag in reading.counted:
        if not flag.texts or set(flag.texts) & (_LAYOUT | set(given)):
            continue
        others = _merged(reading.launch, [each for each in reading.flags if each is not flag])
        texts = kept | others | given | sizes
        try:
            (other,) = resolve(read_inputs(texts))
            taken = tightest_free_bytes(other, *asked) - tightest_free_bytes(scenario, *asked)
            more = found.max_concurrency - max_concurrency(other, found.context)
        except ConfigError:
            continue
        yield FlagCost(flag, taken, more)


def command_document(reading: Reading, costs: Iterable[FlagCost]) -> dict[str, Any]:
    """The command as plain values."""
    by_flag = {cost.flag.spelling: cost for cost in costs}
    return {
        "engine": reading.launch.family,
        "version": reading.launch.version,
        "line": reading.launch.line,
        "counted": [
            {
                "word": flag.spelling,
                "value": flag.value,
                "means": flag.texts,
                "takes_bytes_per_gpu": getattr(by_flag.get(flag.spelling), "taken_bytes", None),
                "requests": getattr(by_flag.get(flag.spelling), "requests", None),
            }
            for flag in reading.counted
        ],
        "not_counted": [
            {"word": flag.spelling, "value": flag.value, "why": flag.effect}
            for flag in reading.uncounted
        ],
        "not_known_to_change_sizes": [flag.spelling for flag in reading.unknown],
    }
