"""A launch command: what its flags and variables mean, and what each of them costs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4kv.engines.logs.setups import preset_named
from dsv4kv.engines.registry import find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import config_file
from dsv4kv.sizing.answer import Answer
from dsv4kv.sizing.command_words import GivenWord, merge, read_word
from dsv4kv.sizing.fit import max_concurrency, tightest_free_bytes
from dsv4kv.sizing.inputs import read_inputs
from dsv4kv.sizing.scenario import Scenario, fix_layout, resolve
from dsv4kv.sizing.servers import Launch, find_launches
from dsv4kv.sizing.words import Texts, find_word

_MOST_CHARACTERS = 2**18
_UNSET = re.compile(r"\$\{?\w+\}?|\{\{?\s*\w+\s*\}?\}")
_LAYOUT = {"model", "tp", "dp", "pp", "ep", "dp-attention", "context"}


@dataclass(frozen=True)
class Reading:
    """A launch command, read.

    Attributes:
        launch: The command.
        words: Its flags and variables, in order; of variables those that an engine knows.
        texts: Our inputs.
    """

    launch: Launch
    words: tuple[GivenWord, ...]
    texts: Texts

    @property
    def counted(self) -> list[GivenWord]:
        """What is used."""
        return [each for each in self.words if each.word and each.word.means]

    @property
    def uncounted(self) -> list[GivenWord]:
        """What changes sizes and is not counted."""
        return [each for each in self.words if each.uncounted]

    @property
    def unknown(self) -> list[GivenWord]:
        """What is not known to change sizes."""
        return [each for each in self.words if each.word is None]


def read_command(given: str, which: str | None = None, model: str | None = None) -> Reading:
    """Read a launch command, or the one of a file.

    Args:
        given: The command, or the path of a file that has it.
        which: Of several commands, its number from 1 or a part of it.
        model: The model, where the command's name for it does not say.

    Raises:
        ConfigError: No command, several of which none is chosen, or a value that cannot be read.
    """
    source, text = _text_of(given)
    try:
        launches = list(find_launches(text))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    launch = _choose(launches, which, source)
    try:
        return interpret(launch, model)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _text_of(given: str) -> tuple[str, str]:
    path = Path(given) if len(given) < 1000 and "\n" not in given else None
    try:
        if path is not None and path.is_file():
            text = path.read_bytes()[: _MOST_CHARACTERS + 1].decode("utf-8", "replace")
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


def _choose(launches: list[Launch], which: str | None, source: str) -> Launch:
    if not launches:
        raise ConfigError(
            f"{source}: no launch command: looked for vllm serve, sglang serve, python -m "
            "sglang.launch_server, trtllm-serve, an image of theirs, or a mapping of their flags."
        )
    listed = "; ".join(
        f"{number}: {launch.title} (line {launch.line})"
        for number, launch in enumerate(launches, 1)
    )
    if which is None:
        if len(set(map(_identity, launches))) > 1:
            raise ConfigError(
                f"{source}: {len(launches)} commands: choose with --which, a number or a part of "
                f"it: {listed}."
            )
        return launches[0]
    if which.isdecimal() and 1 <= int(which) <= len(launches):
        return launches[int(which) - 1]
    found = [launch for launch in launches if which in f"{launch.title} {launch.words}"]
    if len(found) != 1:
        raise ConfigError(f"--which {which}: {len(found)} commands have that: {listed}.")
    return found[0]


def _identity(launch: Launch) -> tuple[Any, ...]:
    return (launch.family, launch.words, tuple(sorted(launch.variables.items())))


def interpret(launch: Launch, model: str | None = None) -> Reading:
    """What a command's flags and variables mean; raises ``ConfigError``."""
    family = launch.family
    words: list[GivenWord] = []
    for name, value in launch.variables.items():
        word = find_word(family, name)
        if word and word.is_variable:
            words.append(read_word(family, name, _set(name, value)))
    for spelling, value in launch.words:
        word = find_word(family, spelling)
        if word and word.means and not word.switch and not value:
            raise ConfigError(f"{spelling}: the value is missing.")
        words.append(read_word(family, spelling, _set(spelling, value) if word else value))
    texts = {"tp": "1", "dp": "1", "pp": "1"} | _merged(launch, words)
    named = model or texts.get("model", "")
    if "model" in texts and not (model or preset_named(named) or config_file(named)):
        raise ConfigError(
            f"--model {named[:100]}: which model that is is not clear: add --model "
            "v4-flash, another preset, or the path of its config.json."
        )
    return Reading(launch, tuple(words), texts | {"engine": _engine(launch)})


def _merged(launch: Launch, words: Iterable[GivenWord]) -> Texts:
    """Our inputs, the model's name as ours where it is known."""
    texts = merge(launch.family, words)
    if "model" in texts:
        texts["model"] = preset_named(texts["model"]) or texts["model"]
    return texts


def _set(name: str, value: str) -> str:
    """A value that is there; raises ``ConfigError`` for a variable that nothing sets."""
    if _UNSET.fullmatch(value.strip()):
        raise ConfigError(f"{name} is {value}, which nothing here sets: write its value.")
    return value


def _engine(launch: Launch) -> str:
    """The version's rules where they are known, else the newest."""
    name = f"{launch.family}:{launch.version}" if launch.version else launch.family
    try:
        find_engine(name)
    except ConfigError:
        return launch.family
    return name


@dataclass(frozen=True)
class WordCost:
    """What one word of a command costs, against the engine's own value.

    Attributes:
        word: The word.
        taken_bytes: Bytes of the tightest GPU that it takes; negative where it gives some.
        requests: Requests of the same context at once that it makes possible, or costs.
    """

    word: GivenWord
    taken_bytes: int
    requests: int


def word_costs(reading: Reading, given: Texts, found: Answer) -> Iterator[WordCost]:
    """Every word that could be left out, with what it costs; ``given`` comes on top of it."""
    scenario, asked = found.scenario, (found.context, found.concurrency)
    whole = _merged(reading.launch, reading.words)
    kept = {name: text for name, text in reading.texts.items() if name not in whole}
    for word in reading.counted:
        if not word.texts or set(word.texts) & (_LAYOUT | set(given)):
            continue
        others = _merged(reading.launch, [each for each in reading.words if each is not word])
        texts = kept | others | given
        try:
            (other,) = resolve(read_inputs(_laid_out(texts, scenario)))
            taken = tightest_free_bytes(other, *asked) - tightest_free_bytes(scenario, *asked)
            more = found.max_concurrency - max_concurrency(other, found.context)
        except ConfigError:
            continue
        yield WordCost(word, taken, more)


def _laid_out(texts: Mapping[str, str], scenario: Scenario) -> Texts:
    """The texts with the layout of a scenario."""
    fixed = fix_layout(scenario)
    sizes = {name: str(getattr(fixed, name)) for name in ("gpus", "tp", "dp", "pp", "ep")}
    return {**texts, **sizes}


def command_document(reading: Reading, costs: Iterable[WordCost]) -> dict[str, Any]:
    """The command as plain values."""
    by_word = {cost.word.spelling: cost for cost in costs}
    return {
        "engine": reading.launch.family,
        "version": reading.launch.version,
        "line": reading.launch.line,
        "counted": [
            {
                "word": word.spelling,
                "value": word.value,
                "means": word.texts,
                "takes_bytes_per_gpu": getattr(by_word.get(word.spelling), "taken_bytes", None),
                "requests": getattr(by_word.get(word.spelling), "requests", None),
            }
            for word in reading.counted
        ],
        "not_counted": [
            {
                "word": word.spelling,
                "value": word.value,
                "why": word.effect,
            }
            for word in reading.uncounted
        ],
        "not_known_to_change_sizes": [word.spelling for word in reading.unknown],
    }
