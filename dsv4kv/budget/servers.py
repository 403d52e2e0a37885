"""Where launch commands are: a line, a script, a unit, Python, or YAML (a recipe, compose, a pod).

A frontend or a router starts no engine, whatever its image is called.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from dsv4kv.budget import shell
from dsv4kv.budget.platforms import (
    ENVIRONMENTS,
    UNIT,
    as_shell,
    environment_of,
    fill_templates,
    notebook_code,
    resolve_documents,
    scalar_texts,
    slurm_variables,
    value_at,
    words_of,
)
from dsv4kv.budget.python_code import read_code
from dsv4kv.engines.flags import Flag
from dsv4kv.engines.names import FAMILIES, find_flag, whole_flag
from dsv4kv.errors import ConfigError
from dsv4kv.files import Unparsable, YamlLoader, load_yaml, read_document

_DEEPEST = 20
_MOST_SHELLS = 1_000  # words of a document that are read as scripts themselves
_MOST_UNREAD = 32  # words without a meaning that are named
_MOST_LAUNCHES = 256  # each of which is judged by the whole text
MODEL_FLAGS = ("--model", "--model-path", "--model_path", "-m", "-hf", "--model_id")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")
_RUNNERS = {"docker", "podman", "nerdctl"}
_ALONE = {
    *("-d", "-i", "-t", "-it", "-ti", "-dit", "-P", "-q", "--detach", "--interactive", "--tty"),
    *("--rm", "--init", "--privileged", "--read-only", "--publish-all", "--quiet", "--replace"),
    *("--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--tls", "--rmi"),
}
"""Options of ``docker run`` without a value."""
_STARTS_NONE = re.compile(
    r"(?i)(?:log|info|warn|error|die|fail|say|msg|print|debug|note|usage)[\w-]*"
    r"|echo|trap|p?kill(?:all)?|pgrep|[ef]?grep|git|cd|cp|mv|ln|ls|cat|mkdir|pip3?|curl|wget|which"
)
_STARTS = [(name, start) for name, row in FAMILIES.items() for start in row.launch.words]
_BY_FIRST = defaultdict[str, list[tuple[int, str, tuple[str, ...]]]](list)
"""Words that start an engine, by the first of them; of several the least number counts."""
for _rank, (_name, _start) in enumerate(_STARTS):
    _BY_FIRST[_start[0]].append((_rank, _name, _start))
_ASKS = {"--help", "-h", "--version"}
"""Arguments with which a program prints something and ends."""
_VERSION = re.compile(r"(?<!cu)(?<!rocm)(?<![\d.])v?(\d+\.\d+(?:\.\d+)?)")  # CUDA's is another
_ASCEND = re.compile(
    r"(?i)vllm-ascend|\bASCEND_RT_|huawei\.com/Ascend|-backend[= ]ascend|--device[= ]npu|"
    r"--quantization[= ]ascend"
)
# images whose tags are not an engine's versions
_TAGGED = re.compile(r"-runtime:|lmcache/|nvidia/(?!tensorrt-?llm)")
_IMAGES = {part: name for name, row in FAMILIES.items() for part in (name, *row.launch.images)}
_ENGINE = rf"(?<!lmcache/)(?<!nvidia/)\b({'|'.join(map(re.escape, _IMAGES))})(?!-runtime)"
_PINNED = re.compile(_ENGINE + r"(?:\s*==\s*|(?:-\w+)?:v?|[_+-]v)(\d+\.\d+(?:\.\d+)?)")
_SPOKEN = re.compile(rf"(?i){_ENGINE}\s+v?(\d+\.\d+(?:\.\d+)?)(?![\w.]*\d|\s*\+|\s+(?:or|and)\b)")
_OF_OTHERS = re.compile(
    r"(?i)\b(?:since|until|unlike|before|after|below|above|than|requires?|needs?|fixed|broken|supported"
    r"|bug|crash\w*|min\w*)\b[^.\n]*$"
)
"""A version in prose; what stands before one that is not the command's."""
_NIGHTLY = re.compile(_ENGINE + r"(?:-\w+)?:nightly[\w.-]*?-(20\d{6})\b")
_GPU_KEYS = (
    *("gpu_type", "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"),
    *("accelerator_type", "accelerators"),
)
_GPU = re.compile(
    r"--(?:gres=gpu|gpus(?:-per-node)?)[:=]([A-Za-z]\w{1,30}):\d"
    r"|\bGPU 0: (?:NVIDIA|AMD) ([\w -]{3,60})"
    r"|rocm[\w.]*[-_](mi3[05]x|mi350)(?![a-z\d])"
)
"""What a batch script asks for, a machine lists, or an image of AMD's is made for."""
_MADE_FOR = {"mi30x": "mi300x", "mi35x": "mi355x", "mi350": "mi355x"}
_RANKS = {
    "tensor": "--tensor-parallel-size",
    "data": "--data-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "expert": "--enable-expert-parallel",
}
_SAYING = ("type", "backend", "engine", "framework")
_NAMING = ("model_id", "model_source", "modelURL", "model_name", "hf_model_id", "storageUri")
_SETTINGS = {"--config", "--extra-engine-args", "--extra-llm-api-options"}
"""Flags that name a file of more flags, which a script or a ConfigMap next to it may hold."""
_ROLES = {name: name for name in ("prefill", "decode", "aggregated", "agg")}
_ROLES |= dict.fromkeys(("ctx", "context_servers"), "prefill")  # TensorRT-LLM's words
_ROLES |= dict.fromkeys(("gen", "generation_servers"), "decode")
_SIDES = {f"{role}_environment" for role in _ROLES}
_PROGRAM = re.compile(r"(?:.*/)?(?:python[\d.]*|(?:ba|z|da)?sh|sleep|tail|nginx|uv|ray|tini|env)")


@dataclass(frozen=True)
class Launch:
    """One launch command, with the version that its image or its installation names."""

    family: str
    version: str | None
    flags: tuple[tuple[str, str], ...]  # with their values, empty for a switch, the model first
    variables: Mapping[str, str]
    line: int = 1  # where it begins, from 1
    role: str = ""  # its side, where it is one of prefill and decode
    gpu: str = ""
    names: tuple[str, ...] = ()  # what else names its model, the likeliest first
    benched_tokens: int = 0  # the longest request of the benchmark that is next to it
    unread: tuple[str, ...] = ()  # words that nothing explains, variables read as unset
    mentioned: str | None = None  # the only model that the whole text names, comments included
    mentioned_gpu: str = ""  # likewise

    @property
    def started(self) -> tuple[Any, ...]:
        """What it starts: equal for servers of equal sizes, as the nodes of one are."""
        given = [*self.flags, *self.variables.items()]
        return self.family, tuple(each for each in given if find_flag(self.family, each[0]))

    @property
    def title(self) -> str:
        """The command in short: ``vllm serve deepseek-ai/DeepSeek-V4-Pro``."""
        named = [value for name, value in self.flags if name in MODEL_FLAGS]
        model = next(iter([*named, *self.names]), "(no model)")
        sides = [value for name, value in self.flags if name == "--disaggregation-mode"]
        role = self.role or next(iter(sides), "")
        return " ".join(filter(None, [self.family, role, model]))


@dataclass(frozen=True)
class _Around:
    """What a document says around a place: variables, engine, side, names of the model, GPU."""

    variables: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    family: str = ""
    role: str = ""
    gpu: str = ""
    image: str = ""
    ranks: tuple[tuple[str, str], ...] = ()  # flags of a chart's ``parallelism``
    names: tuple[str, ...] = ()
    benched_tokens: int = 0
    shells: Iterator[int] = field(default_factory=lambda: iter(range(_MOST_SHELLS)))
    settings: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    maps: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)  # ConfigMaps by name
    sides: Mapping[str, Any] = field(default_factory=dict)
    """Variables of prefill and decode, which a recipe has next to or above their flags."""

    def file_named(self, path: str) -> str | None:
        """The text of a file, wherever it is mounted; its own path may have variables."""
        mounted = {
            Path(shell.fill_in(name, self.variables)).name: text
            for name, text in self.files.items()
        }
        return self.files.get(path) or mounted.get(Path(path).name)

    def settings_of(self, text: str, family: str) -> list[tuple[str, str]]:
        """The flags of a file of settings; each is read once, and no more than a text may have."""
        if text not in self.settings:
            if len(text) + sum(map(len, self.settings)) > shell.MOST_CHARACTERS:
                raise ConfigError("its files of settings are longer than 256 KiB together.")
            documents = load_yaml(text)
            if [*map(type, documents)] not in ([], [dict]):
                raise Unparsable("they are no mapping of flags")
            self.settings[text] = _given(documents[0] if documents else {}, family)
        return self.settings[text]

    def within(self, document: Mapping[Any, Any]) -> "_Around":
        """The same with what a mapping says of all that is in it."""
        said = [document.get(key) for key in _SAYING]
        model, benched = document.get("model"), document.get("benchmark")
        naming = [document.get(key) for key in ("model", *_NAMING)]
        if isinstance(model, dict):
            naming[:1] = [model.get(key) for key in ("name", "path", "uri")]
        inside = (document, document.get("resources"), document.get("nodeSelector"))
        gpus = [each.get(key) for each in inside if isinstance(each, dict) for key in _GPU_KEYS]
        gpus += [next(iter(each)) for each in gpus if isinstance(each, dict) and len(each) == 1]
        gpu = next((each for each in gpus if isinstance(each, str)), self.gpu)
        given = [benched.get(key) for key in ("isl", "osl")] if isinstance(benched, dict) else []
        lengths = [each for each in given if isinstance(each, int)]
        own, spread = self._own(document), document.get("parallelism")
        artifacts = document.get("modelArtifacts")
        naming.append(own.get("model_path"))
        naming.append(value_at(artifacts, "name"))
        naming += [value_at(document, "model_loading_config", key) for key in _NAMING]
        ranks = spread.items() if isinstance(spread, dict) else ()
        counts = ((_RANKS.get(name), n) for name, n in ranks if isinstance(n, int) and n)
        variables = {**self.variables, **own} if own else self.variables
        return replace(
            self,
            variables=variables,
            family=next(filter(None, map(_family_named, said)), self.family),
            gpu=gpu,
            image=shell.fill_in(_image(document), variables) or self.image,
            ranks=tuple((flag, "" if n is True else str(n)) for flag, n in counts if flag)
            or self.ranks,
            names=(*(each for each in naming if isinstance(each, str)), *self.names),
            benched_tokens=sum(lengths) if len(lengths) > 1 else self.benched_tokens,
            sides={**self.sides, **{key: document[key] for key in document if key in _SIDES}},
        )

    def _own(self, document: Mapping[Any, Any]) -> dict[str, str]:
        """Variables that a mapping sets, by those around it; counts that its launcher sets."""
        own, kept = environment_of(document), document.get("envFrom")
        for each in kept if isinstance(kept, list) else ():
            own |= scalar_texts(self.maps.get(str(value_at(each, "configMapRef", "name")), {}))
        for given in (document.get("macros"), document.get("vars")):
            for name, value in given.items() if isinstance(given, dict) else ():
                own[str(name)] = " ".join(map(str, value if isinstance(value, list) else [value]))
        nodes, gpus = document.get("num_nodes", 1), value_at(document, "resources", "accelerators")
        each = re.search(r":\s*(\d+)", str(gpus))
        counts = {
            "LWS_GROUP_SIZE": document.get("size") if "workerTemplate" in document else None,
            "SKYPILOT_NUM_NODES": nodes if each else None,
            "SKYPILOT_NUM_GPUS_PER_NODE": each and each[1],
        }
        own |= {name: str(count) for name, count in counts.items() if count}
        return {name: shell.fill_in(text, self.variables) for name, text in own.items()}


def find_launches(
    text: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator[Launch]:
    """Yield every launch command of a text, which may be YAML; raises ``ConfigError``.

    Variables that the text does not set come from ``environment``, files of settings that it does
    not hold from its ``folder``.
    """
    text = fill_templates(text.removeprefix("\ufeff"))
    if len(text) > shell.MOST_CHARACTERS:
        raise ConfigError("no launch command is longer than 256 KiB.")
    outer = slurm_variables(text) | dict(environment or {})
    pinned, nightly = _PINNED.search(text), _NIGHTLY.search(text)
    documents, files = _as_yaml(text), dict(_settings_in(folder, text)) if folder else {}
    if documents and isinstance(cells := documents[0].get("cells"), list):
        text, documents = "\n".join(map(notebook_code, cells)), None
    if documents is None:
        around = _Around(outer, files)
        commands = iter([*_in_code(text, around)] or _in_script(text, around))
    else:
        named = ((value_at(each, "metadata", "name"), each.get("data")) for each in documents)
        maps = {str(name): data for name, data in named if isinstance(data, dict)}
        for data in maps.values():
            files |= {str(name): body for name, body in data.items() if isinstance(body, str)}
        commands = _in_yaml(list(resolve_documents(documents)), _Around(outer, files, maps=maps))
    found = list(islice(commands, _MOST_LAUNCHES + 1))
    if len(found) > _MOST_LAUNCHES:
        raise ConfigError(
            f"it has over {_MOST_LAUNCHES} launch commands: give those that you mean."
        )
    labels = [label for match in _GPU.findall(text) for label in match if label]
    first = "ascend-910b" if _ASCEND.search(text) else next(iter(labels), "")
    label = _MADE_FOR.get(first, first)
    spoken = defaultdict[str, set[str]](set)  # versions of every engine
    for each in _SPOKEN.finditer(text):
        if not _OF_OTHERS.search(text[max(0, each.start() - 60) : each.start()]):
            spoken[_IMAGES[each[1].lower()]].add(each[2])
    for launch in found:
        version = pinned[2] if pinned and _IMAGES[pinned[1]] == launch.family else None
        own = {name: v for name, v in launch.variables.items() if outer.get(name) != v}
        version, gpu = launch.version or version, launch.gpu or label
        whole = replace(launch, variables=own, version=version, gpu=gpu)
        if version is None and not nightly and len(only := spoken[launch.family]) == 1:
            said = f"a version: {min(only)}, the only one that the text names, is taken"
            whole = replace(whole, version=min(only), unread=(*whole.unread, said))
        dated = nightly and _IMAGES[nightly[1]] == whole.family and version is None
        yield _dated(whole, nightly[2]) if nightly and dated else whole


def _dated(launch: Launch, day: str) -> Launch:
    """The same of a nightly build, with the version that was newest on its day."""
    before = [name for since, name in FAMILIES[launch.family].days.items() if since <= day]
    if not before:
        return launch
    said = f"a version of the image of {day}: {before[-1]}, the newest of that day, is taken"
    return replace(launch, version=before[-1], unread=(*launch.unread, said))


class _Placed(str):
    """A text of YAML, with the line that it begins in, from 0."""

    line = 0


class _Loader(YamlLoader):
    """Keeps the lines of texts."""

    def construct_placed(self, node: Any) -> _Placed:
        found = _Placed(self.construct_scalar(node))  # which refuses !!str of a list
        below = getattr(node, "style", None) in ("|", ">")  # a block begins below
        found.line = node.start_mark.line + below
        return found


_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_placed)


def _as_yaml(text: str) -> list[dict[Any, Any]] | None:
    if "\n" not in text.strip() and not text.lstrip().startswith(("{", "[")):
        return None  # a line with JSON among its words, which is a mapping to YAML
    if UNIT.search(text):
        return None
    try:
        documents = [each for each in load_yaml(text, _Loader) if each is not None]
    except Unparsable:
        return None
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]
    mappings = bool(documents) and all(isinstance(each, dict) for each in documents)
    return documents if mappings else None


# ---- shell --------------------------------------------------------------------------------------


def _settings_in(folder: Path, text: str) -> Iterator[tuple[str, str]]:
    for flag in _SETTINGS:
        named = rf"{flag.replace('-', '[-_]')}(?:=|\s+|\W{{3,9}})([\w./-]+)"
        for value in re.findall(named, text):
            with suppress(OSError, ValueError):
                name = Path(value).name
                yield name, read_document(folder / name, 2**18).decode()


def _in_code(text: str, around: _Around) -> Iterator[Launch]:
    for line, document in read_code(text, around.variables):
        with suppress(shell.OpenQuote):  # of a text that is no command
            for launch in _in_yaml(document, around):
                yield replace(launch, line=line)


def _in_script(text: str, around: _Around) -> Iterator[Launch]:
    text = as_shell(text)
    bare, files = shell.take_documents(text)
    own = replace(around, files={**around.files, **files})
    try:
        found = list(_in_shell(bare, own)) or list(_in_shell(bare, own, decide=False))
    except shell.OpenQuote:  # of prose, or of what a program printed
        joined = bare.replace("\\\n", "\0").split("\n")
        lines = [line if _is_closed(line.replace("\0", " ")) else "" for line in joined]
        found = list(_in_shell("\n".join(lines).replace("\0", "\\\n"), own))
        if not found:
            raise
    last: Mapping[str, str] = {}  # what is written has the variables of the script's end
    with suppress(shell.OpenQuote):
        for each in shell.read_script(bare, around.variables) if files else ():
            last = each.variables
    written = _with(own, last)
    for name, body in files.items():
        code = list(_in_code(body, own))
        if not code and (name or not found) and _as_yaml(body) is None:
            with suppress(shell.OpenQuote):
                code = list(_in_shell(body, written))
        found += code
    yield from found


def _is_closed(line: str) -> bool:
    try:
        return all(map(bool, shell.split_statements(line)))
    except shell.OpenQuote:
        return False


def _in_shell(
    text: str, around: _Around, *, decide: bool = True, depth: int = 0
) -> Iterator[Launch]:
    bare = re.sub(
        r"(?m)^[^\S\n]*(```.*|[$>%]\s+(?=\S))|`#[^`\n]*`", "", text
    )  # no fences, prompts
    any_called, own = False, around
    for each in shell.read_script(bare.replace("`", " "), around.variables, decide=decide):
        if any_called and not each.called:
            return
        if each.variables is not own.variables:
            own = replace(around, variables=each.variables)
        for launch in _launches(each.words, own, depth):
            unset = (f"${name}, which is not set" for name in each.unset)
            yield replace(launch, line=each.line, unread=(*launch.unread, *unset))
            any_called = True


def _launches(words: list[str], around: _Around, depth: int = 0) -> Iterator[Launch]:
    """The servers that the words start, wherever in them."""
    if depth > _DEEPEST or not words or _STARTS_NONE.fullmatch(_program(words[0])):
        return
    image, inside, own = _container(words)
    if image:
        yield from _in_container(inside, replace(_with(around, own), image=image), depth + 1)
        return
    if start := _find_start(words):
        family, before, after = start
        if not _ASKS.intersection(words[after:]):
            yield _make(family, words[after:], _with(around, _set_before(words[:before])))
        return
    for word in words:
        blank = " " in word.strip() or "\n" in word.strip()
        if blank and next(around.shells, None) is not None:  # of bash -c
            with suppress(ConfigError):
                found = list(_in_shell(word, around, depth=depth + 1))
                yield from found
                if found:
                    return


def _find_start(words: list[str]) -> tuple[str, int, int] | None:
    """The engine that the words start, and where its words begin and end."""
    names = [_program(word).partition("==")[0] for word in words]
    found = [
        (rank, place, family, start)
        for place, name in enumerate(names)
        for rank, family, start in _BY_FIRST.get(name, ())
        if tuple(names[place : place + len(start)]) == start
    ]
    if not found:
        return None
    _, place, family, start = min(found)
    return family, place, place + len(start)


def _program(word: str) -> str:
    """A program's name without its folder."""
    return word.rstrip("/").rpartition("/")[2]


def _with(around: _Around, variables: Mapping[str, str]) -> _Around:
    return replace(around, variables={**around.variables, **variables})


def _container(words: list[str]) -> tuple[str, list[str], dict[str, str]]:
    if not (_RUNNERS & set(words) and "run" in words):
        return "", [], {}
    place, entry = words.index("run") + 1, ""
    begin = place
    while place < len(words) and words[place].startswith("-"):
        option, equals, value = words[place].partition("=")
        place += 1
        if not equals and option not in _ALONE:
            value, place = (words[place] if place < len(words) else ""), place + 1
        entry = value if option == "--entrypoint" else entry
    if place >= len(words):
        return "", [], {}
    started = [entry] if entry else []
    return words[place], [*started, *words[place + 1 :]], _set_before(words[begin:place])


def _family_named(text: object) -> str:
    """The engine that a word names: ``trtllm``, ``tensorrt-llm``, ``dynamo.vllm``."""
    plain = re.sub(r"[^a-z]", "", str(text).lower()) if isinstance(text, str) else ""
    plain = plain.replace("tensorrtllm", "trtllm").removeprefix("dynamo")
    return plain if plain in FAMILIES else ""


def _set_before(words: list[str]) -> dict[str, str]:
    own: dict[str, str] = {}
    for flag, word in zip(["", *words], words, strict=False):
        for text in (word.removeprefix("--env="), word if flag in ("-e", "--env") else ""):
            name, equals, value = text.partition("=")
            if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
                own[name] = value
    return own


def _make(family: str, arguments: list[str], around: _Around) -> Launch:
    words, unread = _to_read(arguments)
    forks = (name for name, row in FAMILIES.items() if set(row.marks) & set(words))
    family = next(forks, family)
    settings, own = list[tuple[str, str]](), list[tuple[str, str]]()
    for spelling, value in _pairs(family, words):
        if spelling.replace("_", "-") not in _SETTINGS:
            own.append((spelling, value))
            continue
        text = around.file_named(value)
        try:
            read = (
                around.settings_of(shell.fill_in(text, around.variables), family) if text else None
            )
        except Unparsable:
            read = None
        settings += read or ()
        if read is None and len(unread) < _MOST_UNREAD:
            unread.append(f"{spelling} {value}")
    served = [value for name, value in own if name == "--served-model-name"]
    return Launch(
        family,
        None,
        (*settings, *own),  # a flag that was typed wins
        around.variables,
        role=around.role,
        gpu=around.gpu,
        names=(*served, *around.names),
        benched_tokens=around.benched_tokens,
        unread=tuple(unread),
    )


def _pairs(family: str, words: list[str]) -> Iterator[tuple[str, str]]:
    """Flags and values; what stands for itself is the model; dotted flags become JSON."""
    nested: dict[str, dict[str, str]] = {}
    named = False
    while words:
        spelling, equals, value = words.pop(0).partition("=")
        if not spelling.startswith("-"):
            if not named:
                yield "--model", spelling + equals + value
            named = True
            continue
        spelling = whole_flag(family, spelling)
        flag = find_flag(family, spelling)
        if not equals and _is_value(flag, words[:1]):
            value = words.pop(0)
        base, dot, key = spelling.partition(".")
        named = named or spelling in MODEL_FLAGS
        if dot:
            nested.setdefault(base, {})[key] = value
        elif not named and flag is None and "deepseek" in value.lower() and "/" in value:
            named = True  # of a switch that is not known
            yield from (("--model", value), (spelling, ""))
        elif not (flag and flag.switch):
            yield spelling, value
        elif value.lower() not in ("false", "0"):
            yield spelling, ""
    yield from ((base, _to_json(values)) for base, values in nested.items())


def _to_json(values: dict[str, str]) -> str:
    read: dict[str, Any] = dict(values)
    for key, text in values.items():
        with suppress(ValueError):
            read[key] = json.loads(text.lower() if text in ("True", "False") else text)
    return json.dumps(read)


def _to_read(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The words of a server's own, without files that it writes to; those that have no value."""
    own, unread, before = list[str](), list[str](), ""
    for word in arguments:
        redirects = re.match(r"\d?[<>]", word) or re.fullmatch(r"\d?[<>]+", before)
        path = re.search("(?i)model|path|ckpt", word) and not own
        if not redirects and word.startswith("$") and not before.startswith("-") and not path:
            unread.append(word)
        elif not redirects and re.search(r"\w", word):
            own.append(word)
        before = word if "=" not in word else "="
    return own, unread


def _is_value(flag: Flag | None, following: list[str]) -> bool:
    word = following[0] if following else "-"
    if flag and flag.switch:
        return word.lower() in ("true", "false")
    return not word.startswith("-") or bool(_NEGATIVE.fullmatch(word))


# ---- YAML ---------------------------------------------------------------------------------------

_EXTRA = re.compile(r"(?i)(extra|additional)_?args")
_CONTAINER = ("entrypoint", "command", "args", "cmd")


def _in_yaml(document: Any, around: _Around, depth: int = 0) -> Iterator[Launch]:
    if depth > _DEEPEST:
        return
    if isinstance(document, str):
        with suppress(ConfigError):
            for launch in filter(lambda found: found.flags, _in_shell(document, around)):
                yield _located(launch, document)
    elif isinstance(document, list):
        for each in document:
            yield from _in_yaml(each, around, depth + 1)
    elif isinstance(document, dict):
        around = around.within(document)
        if whole := list(_in_mapping(document, around)):
            yield from whole
            return
        for key, value in document.items():
            if key in (*ENVIRONMENTS, "image", "macros"):
                continue
            name, family = str(key), _family_named(re.sub("_?[cC]onfig$", "", str(key)))
            own = around.sides.get(f"{name}_environment")
            inner = replace(
                around if not isinstance(own, dict) else _with(around, scalar_texts(own)),
                family=family if family and family != name else around.family,
                role=_ROLES.get(name, around.role),
            )
            yield from _in_yaml(value, inner, depth + 1)


def _located(launch: Launch, part: Any) -> Launch:
    """A launch in the line of the words of a document that say it."""
    first = part[0] if isinstance(part, list) and part else part
    return replace(launch, line=launch.line + getattr(first, "line", 0))


def _in_mapping(document: Mapping[Any, Any], around: _Around) -> Iterator[Launch]:
    """The commands that a mapping is as a whole."""
    parts = [document[key] for key in _CONTAINER if document.get(key)]
    extra = [value for key, value in document.items() if value and _EXTRA.fullmatch(str(key))]
    parts += extra if "image" in document else []
    serve = ["vllm", "serve"] if document.get("modelCommand") == "vllmServe" else []  # llm-d's
    container = [*serve, *(word for part in parts for word in words_of(part))]
    if container or "image" in document:
        defaults = document.get("defaults")
        named = document if not isinstance(defaults, dict) else {**document, **defaults}
        own = replace(around, variables={**scalar_texts(named), **around.variables})
        found = list(_in_container(container, own))
        yield from (_located(each, parts[0] if parts else next(iter(document))) for each in found)
        if found:
            return
    if isinstance(base := document.get("base_args"), list):  # a recipe of vLLM's
        model = document.get("model_id", "")
        yield _located(_make("vllm", [str(model), *words_of(base)], around), model or base)
        return
    keys = _given({key: True for key, value in document.items() if value is not None})
    family = _family_of_flags(keys, around.family, min(3, len(document)))
    if not family or not _given(document):  # what is off alone starts nothing
        return
    given = _given(document, family)
    role = find_flag(family, "--disaggregation-mode")
    is_said = any(find_flag(family, spelling) is role for spelling, _ in given)
    if around.role in ("prefill", "decode") and role and role.means and not is_said:
        given = [("--disaggregation-mode", around.role), *given]
    more = [word for each in extra for word in words_of(each)]
    launch = _versioned(_make(family, more, around), around.image)
    launch = replace(launch, flags=(*given, *launch.flags))
    served = (value for name, value in given if name.replace("_", "-") == "--served-model-name")
    launch = replace(launch, names=(*served, *launch.names))
    yield _located(launch, next(iter(document)))


def _image(document: Mapping[Any, Any]) -> str:
    """A container's image; Helm charts write its tag under a key of its own."""
    image = document.get("image") or document
    if not isinstance(image, dict):
        return str(image)
    repository, tag = (image.get(name) for name in ("repository", "tag"))
    return f"{repository}:{tag}" if repository and tag else ""


def _versioned(launch: Launch, image: str) -> Launch:
    """The launch with the version that its image's tag names, unless it has one."""
    tag = None if _TAGGED.search(image) else _VERSION.search(image.rpartition(":")[2])
    engine = any(part in image.lower() for part in FAMILIES[launch.family].launch.images)
    return replace(launch, version=tag[1]) if tag and engine and not launch.version else launch


def _in_container(words: list[str], around: _Around, depth: int = 0) -> Iterator[Launch]:
    """The servers of a container's words, or of its image where these are flags alone."""
    image = around.image.lower()
    variables = around.variables
    filled = shell.bounded(
        part
        for word in words
        for text in [_with_marks(word, variables)]
        for part in (
            shell.expand(text, variables)  # of a variable alone, which may be several words
            if re.fullmatch(r"\$\w+|\$\{\w+\}", text)
            else [shell.fill_in(text, variables)]
        )
    )
    found = list(_launches(filled, around, depth))
    images = (
        name for name, row in FAMILIES.items() for part in row.launch.images if part in image
    )
    family = next(images, "")
    bare = filled[:1] and not (_PROGRAM.fullmatch(filled[0]) or filled[0] in ("-m", "-c"))
    bare = bare or any(word.endswith(".gguf") for word in filled)  # -m is llama.cpp's model
    if not found and not filled and family and _names_model(family, around.variables):
        found = [_make(family, [], around)]
    elif not found and bare and (filled[0].startswith("-") or "/" in filled[0]):
        given = [(word.partition("=")[0], "") for word in filled if word.startswith("--")]
        if family := family or _family_of_flags(given, around.family, 3):
            found = [_make(family, filled, around)]
    for launch in found:
        said = {find_flag(launch.family, spelling) for spelling, _ in launch.flags} | {None}
        ranks = (each for each in around.ranks if find_flag(launch.family, each[0]) not in said)
        yield _versioned(replace(launch, flags=(*launch.flags, *ranks)), around.image)


def _with_marks(word: str, variables: Mapping[str, str]) -> str:
    """A word with ``{tensor_parallel}`` of a recipe as a shell's."""
    return re.sub(
        r"(?<![$\1])\{(\w+)\}", lambda match: "$" * (match[1] in variables) + match[0], word
    )


def _names_model(family: str, variables: Iterable[str]) -> bool:
    """Whether variables name the model, as llama.cpp's may: its image needs no words then."""
    known = (flag for name in variables if "_" in name and (flag := find_flag(family, name)))
    return any(flag.means is not None and flag.means.input == "model" for flag in known)


def _given(document: Any, family: str = "") -> list[tuple[str, str]]:
    """The keys of a mapping as flags, without empty ones; what a family has a flag to turn off."""
    found = []
    for key, value in document.items() if isinstance(document, dict) else ():
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", str(key).lstrip("-")).lower()
        if key in ENVIRONMENTS or (key in _SAYING and _family_named(value)):
            continue
        dp_attention = family and find_flag(family, "--enable-dp-attention")
        if name == "dp-attn" and value is True and dp_attention:  # InferenceX's word
            found += [("--enable-dp-attention", ""), ("--dp-size", str(document.get("tp", 1)))]
        elif value is False:
            off = "--no-" + name.replace("_", "-")
            found += [(off, "")] if family and find_flag(family, off) else []
        elif value is not None and not _EXTRA.fullmatch(str(key)):
            whole = isinstance(value, dict | list)
            text = json.dumps(value, default=str, skipkeys=True) if whole else str(value)
            found.append((f"--{name}", "" if value is True else text))
    return found


def _family_of_flags(given: Iterable[tuple[str, str]], family: str, least: int) -> str:
    """The engine that knows most of the flags, at least two of them; ``family`` if it is said."""
    counts = {
        name: sum(find_flag(name, spelling) is not None for spelling, _ in given)
        for name in ([family] if family else FAMILIES)
    }
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= (2 if family else max(2, least)) else ""
