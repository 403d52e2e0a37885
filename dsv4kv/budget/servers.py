"""Where launch commands are: in a line, a shell script, or YAML (a recipe, a compose file, a pod).

Nothing is run; of shell scripts, only statements, quotes and variables are read.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4kv.engines.flags import find_flag
from dsv4kv.engines.names import FAMILIES
from dsv4kv.errors import ConfigError
from dsv4kv.files import Unparsable, load_yaml

_TOKEN = re.compile(
    r"""(?P<join>\\\r?\n) | (?P<escape>\\.?) | (?P<single>'[^']*')
    | (?P<double>"(?:\\.|[^"\\])*") | (?P<comment>(?<![^\s;&|])\#[^\n]*) | (?P<end>[\n;&|])
    | (?P<blank>[^\S\n]+) | (?P<plain>[^\\'"\s;&|]+) | (?P<open>['"])""",
    re.VERBOSE | re.DOTALL,
)
_HIDDEN = "\0"  # a dollar sign within single quotes
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:?[-=+?])(?P<other>[^}]*))?\})"
)
_KEYWORDS = {"exec", "sudo", "nohup", "time", "env", "then", "do", "else", "command", "$", "!"}


def split_statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the words of every statement, quotes and comments resolved.

    Variables stay as they are written, hidden within single quotes.
    """
    words: list[str] = []
    parts: list[str] = []  # of a word
    first = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "open":
            line = text.count("\n", 0, match.start()) + 1
            raise ConfigError(f"line {line}: a quote {match[0]} is opened and never closed.")
        if kind in ("blank", "end"):
            words += ["".join(parts)] if parts else []
            parts = []
            if kind == "end" and words:
                yield first, words
                words = []
        elif kind not in ("join", "comment"):
            if not words and not parts:
                first = text.count("\n", 0, match.start()) + 1
            token = match[0][1:] if kind == "escape" else match[0]
            if kind == "single":
                token = token[1:-1].replace("$", _HIDDEN)
            elif kind == "double":
                token = re.sub(r'\\(["\\$`])', r"\1", token[1:-1].replace("\\\n", ""))
            parts.append(token)
    words += ["".join(parts)] if parts else []
    if words:
        yield first, words


def fill_in(word: str, variables: Mapping[str, str]) -> str:
    """A word with its variables; those that nothing sets stay as they are written."""

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["name"]
        found, how = variables.get(name), match["how"] or ""
        if "+" in how:
            return match["other"] if found else ""
        if found is None and how:
            return fill_in(match["other"], variables) if how[-1] in "-=" else match[0]
        return match[0] if found is None else found

    return _VARIABLE.sub(value, word).replace(_HIDDEN, "$")


def take_assignments(words: list[str], variables: dict[str, str]) -> list[str]:
    """The words after ``NAME=value`` and ``export``; what they set goes to ``variables``."""
    rest = list(words)
    while rest:
        match = _ASSIGNMENT.fullmatch(rest[0])
        if match:
            variables[match[1]] = fill_in(match[2], variables)
        elif rest[0] not in ("export", "declare", "local", "readonly", *_KEYWORDS):
            break
        rest.pop(0)
    return rest


_DEEPEST = 20
_MODEL_FLAGS = ("--model", "--model-path")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")
_RUNNERS = {"docker", "podman", "nerdctl"}
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)")
_PINNED = re.compile(rf"\b({'|'.join(FAMILIES)})\s*==\s*(\d+\.\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Launch:
    """One launch command, with the version that its image or its installation names.

    Its flags have their values, empty for a switch, the model first; ``line`` counts from 1.
    """

    family: str
    version: str | None
    flags: tuple[tuple[str, str], ...]
    variables: Mapping[str, str]
    line: int = 1

    @property
    def title(self) -> str:
        """The command in short: ``vllm serve deepseek-ai/DeepSeek-V4-Pro``."""
        named = (value for name, value in self.flags if name in _MODEL_FLAGS)
        return f"{self.family} {next(named, '(no model)')}"


def find_launches(text: str) -> Iterator[Launch]:
    """Yield every launch command of a text, which may be YAML; raises ``ConfigError``."""
    pinned = _PINNED.search(text)
    document = _as_yaml(text)
    found = _in_shell(text, {}) if document is None else _in_yaml(document, {}, text)
    for launch in found:
        version = pinned[2] if pinned and pinned[1] == launch.family else None
        yield replace(launch, version=launch.version or version)


def _as_yaml(text: str) -> Any:
    """A mapping or a list of mappings; None for anything else, such as a script."""
    if "\n" not in text.strip() and not text.lstrip().startswith(("{", "[")):
        return None  # a line with JSON among its words, which is a mapping to YAML
    try:
        documents = [each for each in load_yaml(text) if each is not None]
    except Unparsable:
        return None
    document = documents[0] if len(documents) == 1 else documents
    mappings = document if isinstance(document, list) else [document]
    return document if mappings and all(isinstance(each, dict) for each in mappings) else None


def _in_shell(text: str, variables: Mapping[str, str]) -> Iterator[Launch]:
    # without Markdown's fences and prompts, lines kept
    bare = re.sub(r"^\s*(```.*|[$>%]\s+(?=\S))", "", text, flags=re.MULTILINE)
    known = dict(variables)
    for line, words in split_statements(bare.replace("`", " ")):
        own = dict(known)
        rest = take_assignments(words, own)
        if not rest:
            known = own
            continue
        flat: list[str] = []
        for word in (fill_in(word, own) for word in rest):
            many = word.startswith("-") and " -" in word and "=" not in word
            flat += word.split() if many else [word]  # a variable may hold several flags
        if launch := _launch(flat, own, line):
            yield launch


def _launch(words: list[str], variables: Mapping[str, str], line: int) -> Launch | None:
    """The server that the words start, wherever in them; None where there is none."""
    starts = [(start, family) for family, row in FAMILIES.items() for start in row.launch.words]
    for start, family in starts:
        for place in range(len(words) - len(start) + 1):
            if tuple(Path(word).name for word in words[place : place + len(start)]) == start:
                before, after = words[:place], words[place + len(start) :]
                return _make(family, after, {**variables, **_set_before(before)}, line, before)
    for place, word in enumerate(words):
        owner, before, after = _family_of_image(word), words[:place], words[place + 1 :]
        if owner and _RUNNERS & set(before):
            own = {**variables, **_set_before(before)}
            return _make(owner, after, own, line, [word]) if after else None
    return None


def _family_of_image(word: str) -> str | None:
    """Whose server an image starts: ``vllm/vllm-openai:v0.26.0``; None for other words."""
    if word.startswith(("-", "/", ".")) or "=" in word or "/" not in word or ":/" in word:
        return None
    for name, family in FAMILIES.items():
        if any(part in word.lower() for part in family.launch.images):
            return name
    return None


def _set_before(words: list[str]) -> dict[str, str]:
    own: dict[str, str] = {}
    for flag, word in zip(["", *words], words, strict=False):
        for text in (word.removeprefix("--env="), word if flag in ("-e", "--env") else ""):
            name, equals, value = text.partition("=")
            if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
                own[name] = value
    return own


def _make(
    family: str,
    arguments: list[str],
    variables: Mapping[str, str],
    line: int,
    before: Iterable[str] = (),
) -> Launch:
    images = [word for word in before if _family_of_image(word)]
    tagged = [_VERSION.search(word.rpartition(":")[2]) for word in images]
    version = next((match[1] for match in tagged if match), None)
    return Launch(family, version, tuple(_pairs(family, arguments)), variables, line)


def _pairs(family: str, arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Flags and values; what stands for itself is the model; dotted flags become JSON."""
    nested: dict[str, dict[str, Any]] = {}
    named = False
    words = [word for word in arguments if word not in ("-", "--")]
    place = 0
    while place < len(words):
        spelling, equals, value = words[place].partition("=")
        place += 1
        if not spelling.startswith("-"):
            if not named:
                named = True
                yield "--model", spelling + equals + value
            continue
        flag = find_flag(family, spelling)
        following = words[place] if place < len(words) else "-"
        is_value = not following.startswith("-") or _NEGATIVE.fullmatch(following)
        if not equals and not (flag and flag.switch) and is_value:
            value, place = following, place + 1
        base, dot, key = spelling.partition(".")
        if dot:
            nested.setdefault(base, {})[key] = value
            continue
        named = named or spelling in _MODEL_FLAGS
        if not named and flag is None and "deepseek" in value.lower() and "/" in value:
            named = True
            yield "--model", value
            value = ""
        yield spelling, value
    for base, values in nested.items():
        for key, text in values.items():
            with suppress(ValueError):
                values[key] = json.loads(text.lower() if text in ("True", "False") else text)
        yield base, json.dumps(values)


_CONTAINER = ("command", "args", "entrypoint", "cmd")


def _in_yaml(
    document: Any, variables: Mapping[str, str], text: str, depth: int = 0
) -> Iterator[Launch]:
    if depth > _DEEPEST:
        return
    if isinstance(document, str):
        for launch in _in_shell(document, variables):
            yield _located(launch, document, text)
    elif isinstance(document, list):
        for each in document:
            yield from _in_yaml(each, variables, text, depth + 1)
    elif isinstance(document, dict):
        own = {**variables, **_environment(document)}
        whole, part = _in_mapping(document, own)
        if whole:
            yield _located(whole, part, text)
            return
        for key, value in document.items():
            if key not in ("environment", "env", "image"):
                yield from _in_yaml(value, own, text, depth + 1)


def _in_mapping(
    document: Mapping[Any, Any], variables: Mapping[str, str]
) -> tuple[Launch | None, str]:
    """The command that a mapping is as a whole, and a part of its text."""
    container = [word for key in _CONTAINER for word in _words(document.get(key))]
    image = str(document.get("image", ""))
    defaults = document.get("defaults")
    named = document if not isinstance(defaults, dict) else {**document, **defaults}
    plain = {str(k): str(v) for k, v in named.items() if isinstance(v, str | int | float)}
    launch = _in_container(container, image, {**plain, **variables})
    if launch:
        return launch, container[0]
    if isinstance(document.get("base_args"), list):  # a recipe of vLLM's
        words = [str(document.get("model_id", "")), *_words(document["base_args"])]
        return _make("vllm", words, variables, 1), words[0]
    family, flags = _flags(document)
    if flags:
        return Launch(family, None, tuple(flags), variables), str(next(iter(document)))
    return None, ""


def _in_container(words: list[str], image: str, variables: Mapping[str, str]) -> Launch | None:
    """The server of a container's words, or of its image where these are flags alone."""
    if not words:
        return None
    filled = [  # ${variable}, and {tensor_parallel} of a recipe
        re.sub(r"(?<!\$)\{(\w+)\}", lambda m: variables.get(m[1], m[0]), fill_in(word, variables))
        for word in words
    ]
    script = "\n".join(word for word in filled if "\n" in word or " " in word)
    launch = _launch(filled, variables, 1)
    if launch is None and script:
        launch = next(_in_shell(script, variables), None)
    family = _family_of_image(image)
    if launch is None and family:
        launch = _make(family, filled, variables, 1, [image])
    if launch and launch.version is None:
        tag = _VERSION.search(image.rpartition(":")[2])
        launch = replace(launch, version=tag[1] if tag and family else None)
    return launch


def _environment(document: Mapping[Any, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in ("environment", "env"):
        value = document.get(key)
        if isinstance(value, dict):
            found |= {str(name): str(text) for name, text in value.items()}
        for each in value if isinstance(value, list) else ():
            if isinstance(each, dict) and "name" in each:
                found[str(each["name"])] = str(each.get("value", ""))
            elif isinstance(each, str) and "=" in each:
                name, _, text = each.partition("=")
                found[name] = text
    return found


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        statements = [words for _, words in split_statements(value)]
        return statements[0] if len(statements) == 1 else [value]
    return [str(each) for each in value] if isinstance(value, list) else []


def _flags(document: Mapping[Any, Any]) -> tuple[str, list[tuple[str, str]]]:
    """The engine whose flags a mapping has, and these; nothing where they are too few."""
    given = {
        f"--{str(key).lstrip('-')}": "" if value is True else value
        for key, value in document.items()
    }
    for family in FAMILIES:
        known = sum(find_flag(family, name) is not None for name in given)
        if known >= min(3, len(document)) and known >= 2:
            return family, [
                (name, json.dumps(value) if isinstance(value, dict) else str(value))
                for name, value in given.items()
                if value is not False and value is not None
            ]
    return "", []


def _located(launch: Launch, part: str, text: str) -> Launch:
    place = text.find(part.partition("\n")[0].strip()[:40])
    return replace(launch, line=launch.line + text.count("\n", 0, max(place, 0)))
