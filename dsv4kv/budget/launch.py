"""A launch command: what its flags and variables mean, and what each of them costs."""

import os
import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dsv4kv.budget.answer import Answer
from dsv4kv.budget.fit import max_concurrency, tightest_free_bytes
from dsv4kv.budget.gpus import gpu_labelled, gpu_names
from dsv4kv.budget.inputs import (
    DEFAULT_GPU,
    READERS,
    GivenFlag,
    Inputs,
    merge,
    read_flag,
    read_inputs,
)
from dsv4kv.budget.layout import Layout
from dsv4kv.budget.quantised import storage_of_name
from dsv4kv.budget.scenario import Scenario, fix_layout, resolve
from dsv4kv.budget.servers import MODEL_FLAGS, Launch, find_launches
from dsv4kv.budget.shell import MOST_CHARACTERS
from dsv4kv.engines import rule as rl
from dsv4kv.engines.flags import KEYS, NOTHING, OWN_DRAFTS, VALUES, Flag, Texts, read_object
from dsv4kv.engines.names import (
    FAMILIES,
    family_of,
    find_engine,
    find_flag,
    near_flag,
    replayed_engines,
)
from dsv4kv.errors import ConfigError, mask_secrets
from dsv4kv.files import open_regular
from dsv4kv.model.presets import config_file, preset_named, preset_names

_UNSET = re.compile(r"\$\{?\w+|\$\(|\{\{?\s*\w+\s*\}?\}")
_MODEL = r"\b(?:deepseek|ds)-?{}(?![a-z0-9])"
_GPU = r"(?:(?<![a-z0-9.])|(?<=\dx)){}s?(?![a-wyz0-9]|x[^\d])"
_LAYOUT = {"model", "tp", "dp", "pp", "ep", "dp-attention", "context"}
_NEEDED = ("model", "tp", "dp", "pp")
"""Inputs without which an answer would be another deployment's."""
_MOST_GUESSED = 20  # unknown flags that are compared with all known ones


@dataclass(frozen=True)
class Reading:
    """A launch command, read; of its variables those that an engine knows.

    ``unread`` are its words that nothing gives a value, and what was taken instead.
    """

    launch: Launch
    flags: tuple[GivenFlag, ...]
    texts: Texts
    unread: tuple[str, ...] = ()

    @property
    def counted(self) -> list[GivenFlag]:
        return [each for each in self.flags if each.flag and each.flag.means]

    @property
    def uncounted(self) -> list[GivenFlag]:
        """Flags that change sizes and are not counted; a name says its quantisation, too."""
        named = _says_storage(self.texts.get("checkpoint", ""), self.texts.get("model", ""))
        flags = [each for each in self.flags if each.flag and not each.flag.means]
        return [each for each in flags if not (named and "quantization" in each.spelling)]

    @property
    def unknown(self) -> list[GivenFlag]:
        return [each for each in self.flags if each.flag is None]

    @cached_property
    def misspelt(self) -> dict[str, str]:
        """Of the first of these, those that are nearly a flag of sizes, with that flag."""
        family = self.launch.family
        spellings = (each.spelling for each in self.unknown[:_MOST_GUESSED])
        return {each: near for each in spellings if (near := near_flag(family, each))}


def read_command(
    given: str,
    which: str | None = None,
    model: str | None = None,
    options: Container[str] = (),
    *,
    whole: bool = False,
) -> Reading:
    """Read a launch command, or a file with one; the environment fills what it does not set.

    Of several commands ``which`` is its number from 1 or a part of it; ``model`` is what it
    serves, where its own name for the model does not say; ``options`` are the inputs that are
    given separately, whose flags may have no value; a ``whole`` one has its ranks. Raises
    ``ConfigError`` for no command, several without a choice, or a value that cannot be read.
    """
    with _launches(given) as (_, launches):
        return _interpret(_choose(launches, which), model, options, whole=whole)


def read_commands(
    given: str, model: str | None = None, options: Container[str] = ()
) -> list[Callable[[], Reading]]:
    """Every different launch command of a text or a file; raises ``ConfigError``.

    Each is read by a call, which raises ``ConfigError`` for what is wrong with it alone.
    """
    with _launches(given) as (source, launches):
        _choose(launches, "1")  # refuses none

    def read(launch: Launch) -> Reading:
        try:
            return _interpret(launch, model, options)
        except ConfigError as error:
            which = f"{launch.title} (line {launch.line}): " if len(different) > 1 else ""
            raise ConfigError(f"{source}: {which}{error}") from None

    different = {each.started: each for each in launches}
    return [partial(read, each) for each in different.values()]


@contextmanager
def _launches(given: str) -> Iterator[tuple[str, list[Launch]]]:
    """The commands of a text or a file, which is named where they are refused."""
    source, text = _text_of(given)
    try:
        folder = Path() if source == "--command" else Path(source).parent
        gpu = gpu_labelled(Path(source).name) or ""
        plain = _dashed(text)
        models = [each for each in preset_names() if re.search(_MODEL.format(each), plain)]
        model = models[0] if len(models) == 1 else None
        yield source, _with_mentions(text, find_launches(text, os.environ, folder), gpu, model)
    except ConfigError as error:
        if str(error).startswith("--which"):  # is about the option, not about the text
            raise
        raise ConfigError(f"{source}: {error}") from None


def _with_mentions(
    text: str, launches: Iterable[Launch], gpu: str, model: str | None
) -> list[Launch]:
    """The launches with the GPU that is named above each of them, or in the text, alone."""
    lines, found, begin = text.split("\n"), list(launches), 0
    whole = _gpus_in(text)
    for place, each in enumerate(found):
        near = _gpus_in("\n".join(lines[begin : each.line]))
        begin = each.line
        named = near if len(near) == 1 else whole
        only = named[0] if len(named) == 1 else ""
        set_ = (text for name, text in each.variables.items() if re.search("GPU|gpu", name))
        own = each.gpu or next(filter(gpu_labelled, set_), "") or gpu
        found[place] = replace(each, gpu=own, mentioned=model, mentioned_gpu=only)
    return found


def _dashed(text: str) -> str:
    """The text as names of models and GPUs are written: small letters, dashes between words."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())


def _gpus_in(text: str) -> list[str]:
    # no paths, no addresses; names of scripts stay
    paths = r"(?<!\S)\S*/(?:(\S+\.(?:sh|sbatch|slurm|ya?ml))(?!\S)|\S*)"
    plain = re.sub(r"dgx-sparks?\b", "gb10", _dashed(re.sub(paths, r" \1 ", text)))
    gpus = [each for each in gpu_names() if re.search(_GPU.format(each), plain)]
    return [each for each in gpus if not any(other.startswith(f"{each}-") for other in gpus)]


def _text_of(given: str) -> tuple[str, str]:
    path = Path(given) if len(given) < 1000 and "\n" not in given else None
    try:
        if path is not None and path.is_file():
            with open_regular(path) as file:
                return given, file.read(4 * MOST_CHARACTERS + 1).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{given[:60]!r} cannot be read ({why}).") from None
    if not given.strip():
        raise ConfigError("--command: it is empty: give a launch command, or a file with one.")
    if " " not in given.strip() and re.search(r"\.(sh|ya?ml|json|txt|service)$|/", given):
        raise ConfigError(f"--command {given[:200]}: there is no such file.")
    return "--command", given


def _choose(launches: list[Launch], which: str | None) -> Launch:
    if not launches:
        raise ConfigError(
            "no launch command: looked for vllm serve, sglang serve, python -m "
            "sglang.launch_server, trtllm-serve, dynamo's workers, llama-server, ds4-server, an "
            "image of theirs, or a mapping of their flags."
        )
    listed = "; ".join(
        f"{number}: {launch.title} (line {launch.line})"
        for number, launch in enumerate(launches, 1)
    )
    if which is None:
        ours = [each for each in launches if _model_of(each) or not _is_published(each)]
        if len({each.started for each in ours or launches}) > 1:
            raise ConfigError(
                f"{len(launches)} commands: choose with --which, a number or a part of it: "
                f"{listed}."
            )
        return (ours or launches)[0]
    if which.isdecimal() and 1 <= int(which) <= len(launches):
        return launches[int(which) - 1]
    found = [each for each in launches if which in f"{each.title} {each.names} {each.flags}"]
    sides = [each for each in launches if each.role == which]
    found = sides if len(sides) == 1 else found
    if len(found) != 1:
        raise ConfigError(f"--which {which}: {len(found)} commands have that: {listed}.")
    return found[0]


def _interpret(
    launch: Launch, model: str | None, options: Container[str], *, whole: bool = False
) -> Reading:
    flags, unset = _read_flags(launch)
    merged, sizes = _merged(launch, flags), ("gpus", *_NEEDED[1:])
    named = _model_of(launch) or model or _named([merged.get("model", "")])
    absent = {about for about, _ in unset}
    unread = list(launch.unread)
    others = [name for name in launch.names if "/" in name.strip("/")]  # other models' names
    silent = not others and not any("model" in each.texts for each in flags)
    if not named and launch.mentioned and silent:
        named = launch.mentioned
        unread.append(f"a model: {named}, the only one that the text names, is taken")
    unset = [(about, words) for about, words in unset if about not in options]
    unread += _without_value(unset, flags, {"model": bool(named), "tp": not whole})
    _check_types(flags)
    spread = [word for word in launch.unread if "," not in word]
    if spread and not any(name in {*merged, *absent} or name in options for name in sizes):
        raise ConfigError(
            f"{', '.join(launch.unread)}: not read, and it may give the layout: give budget "
            "--command with --tp (1 for one GPU), set the variable in the environment, or put the "
            "file next to the script."
        )
    is_given = "context" in merged or "context" in options
    if launch.role and launch.benched_tokens and not is_given:
        merged["context"] = str(launch.benched_tokens)
        unread.append(f"a longest request: its benchmark's {launch.benched_tokens:,} tokens")
    ranks = () if FAMILIES[launch.family].by_layers else _NEEDED[1:]
    texts = {name: "1" for name in ranks if name not in absent} | merged
    texts = texts if ranks or "gpus" in options else _devices(launch) | texts
    if named:
        texts["model"] = named
        telling = [name for name in launch.names if _says_storage(name, named)]
        texts |= {"checkpoint": telling[0]} if telling and "checkpoint" not in texts else {}
    elif "model" in texts or others:
        given = texts.get("model") or others[-1]
        raise ConfigError(
            f"--model {given[:100]}: which model that is is not clear: add --model "
            "v4-flash, another preset, or the path of its config.json."
        )
    elif "model" not in options:
        unread.append("a model: v4-flash is taken")
    if "gpu" not in options and "hbm" not in options:
        gpu, said = _gpu_of(launch)
        if not gpu and merged.get("indexer-format") == "mxfp4":
            gpu, said = "b200", ["a GPU: b200 is taken, whose indexer keys may be MXFP4"]
        texts |= {"gpu": gpu} if gpu else {}
        unread += said
    name = f"{launch.family}:{launch.version}" if launch.version else launch.family
    try:
        find_engine(name)
    except ConfigError:  # an unknown version: the newest one's rules
        unread = [each for each in unread if not each.startswith("a version")]
        unread.append(f"version {launch.version}, of no known rules: the newest are taken")
        name = launch.family
    return Reading(launch, tuple(flags), texts | {"engine": name}, tuple(unread))


def _devices(launch: Launch) -> dict[str, str]:
    """The number of GPUs that a server of stages sees."""
    devices = launch.variables.get("CUDA_VISIBLE_DEVICES", "")
    is_list = re.fullmatch(r"\d+(,\d+)*", devices)
    return {"gpus": str(devices.count(",") + 1)} if is_list else {}


def _gpu_of(launch: Launch) -> tuple[str | None, list[str]]:
    if launch.gpu:
        gpu = gpu_labelled(launch.gpu)
        unknown = f"GPU {launch.gpu[:60]}, which is not known: {DEFAULT_GPU} is taken"
        return gpu, [] if gpu else [unknown]
    only = launch.mentioned_gpu
    return only, [
        f"a GPU: {only}, the only one that the text names there, is taken"
    ] if only else []


def _says_storage(name: str, model: str) -> bool:
    """Whether one of a model's names says how its matrices are stored."""
    with suppress(ConfigError):
        return preset_named(name) == model and storage_of_name(name) is not None
    return False


def _check_types(flags: Iterable[GivenFlag]) -> None:
    """Keys and values of V4 are one cache, which llama.cpp refuses in two types."""
    types = {KEYS: "f16", VALUES: "f16"}
    for each in flags:
        types |= {name: text for name, text in each.texts.items() if name in types}
    if types[KEYS] != types[VALUES]:
        raise ConfigError(
            f"llama.cpp does not start with -ctk {types[KEYS]} and -ctv {types[VALUES]}: give "
            "both the same type."
        )


def _without_value(
    unset: Iterable[tuple[str, str]], flags: Iterable[GivenFlag], may: Mapping[str, bool]
) -> Iterator[str]:
    """What to say of flags that nothing gives a value; the ranks ``may`` be open of a replica."""
    given = {name: text for each in flags for name, text in each.texts.items()}
    absent = {about for about, _ in unset}
    spread = "dp" in absent or given.get("dp", "1") != "1" or "dp-attention" in given
    for about, words in unset:
        if about in _NEEDED and (not may.get(about) or (about == "tp" and spread)):
            raise ConfigError(
                f"{words.replace(' ', ' is ', 1)}, which nothing here sets: add --{about}, or set "
                "the variable in the environment."
            )
        taken = ", which nothing here sets: by --gpus, else the fewest that are enough"
        yield words + taken * (about == "tp")


def _read_flags(launch: Launch) -> tuple[list[GivenFlag], list[tuple[str, str]]]:
    """Flags with what they mean; inputs and words of those whose value nothing sets."""
    flags, unset = list[GivenFlag](), list[tuple[str, str]]()
    for name, value in [*launch.variables.items(), *launch.flags]:
        flag = find_flag(launch.family, name)
        if not name.startswith("-") and not (flag and name in flag.spellings.split()):
            continue
        if flag and flag.means not in (None, NOTHING) and not flag.switch and not value:
            raise ConfigError(f"{name}: the value is missing.")
        if flag and flag.means and _UNSET.search(value):
            unset.append((flag.means.input, f"{name} {value}"))
        else:
            flags.append(read_flag(launch.family, name, value))
            flags += _uncounted_inside(launch.family, value)
    return flags, unset


def _uncounted_inside(family: str, value: str) -> Iterator[GivenFlag]:
    """Keys of a JSON object that are flags, too, and change sizes uncounted."""
    with suppress(ConfigError):
        for key, text in read_object(value).items() if value.startswith("{") else ():
            flag = find_flag(family, f"--{key}")
            if flag and not flag.means and text is not None:
                yield read_flag(family, f"--{key}", str(text))


def _model_of(launch: Launch) -> str | None:
    """What it serves, by the path or, unless that is another published model's, by a name."""
    return _named(_given_models(launch)) or (
        None if _is_published(launch) else _named(launch.names)
    )


def _given_models(launch: Launch) -> list[str]:
    return [value for name, value in launch.flags if name in MODEL_FLAGS]


def _is_published(launch: Launch) -> bool:
    folders = r"models?|weights|checkpoints?|ckpts?|data|hf|cache|mnt|opt"
    form = rf"(?!(?:{folders})/)[A-Za-z]\w[\w-]*/\w[\w.-]*|.*\.gguf"
    return any(re.fullmatch(form, value) for value in _given_models(launch))


def _named(names: Iterable[str]) -> str | None:
    """The first preset, or config.json, that one of a model's names means."""
    found = (
        preset_named(name) or (name if name and config_file(name) else None) for name in names
    )
    return next(filter(None, found), None)


def _merged(launch: Launch, flags: Iterable[GivenFlag]) -> Texts:
    texts = merge(launch.family, flags)
    if "model" in texts and (preset := preset_named(texts["model"])):
        if preset != texts["model"]:
            texts["checkpoint"] = texts["model"]
        texts["model"] = preset
    return texts


@dataclass(frozen=True)
class FlagCost:
    """Bytes of the tightest GPU that one flag takes, and requests that it makes possible.

    Against the engine's own value; either may be negative.
    """

    flag: GivenFlag
    taken_bytes: int
    requests: int


_NAMED = ("model", "checkpoint")


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
        named = {each: reading.texts[each] for each in _NAMED if each in reading.texts}
        texts = kept | others | named | given | sizes
        try:
            read = read_inputs(texts)
            (other,) = resolve(read)
            of_slots = read.context if scenario.engine.unit == "slot" else None
            length = of_slots or found.context  # slots are as long as its flags make them
            free = tightest_free_bytes(other, length, found.concurrency)
            taken = free - tightest_free_bytes(scenario, *asked)
            more = found.max_concurrency - max_concurrency(other, length)
        except ConfigError:
            continue
        yield FlagCost(flag, taken, more)


def command_document(reading: Reading, costs: Iterable[FlagCost]) -> dict[str, Any]:
    by_flag = {cost.flag.spelling: cost for cost in costs}
    return {
        "engine": reading.launch.family,
        "version": reading.launch.version,
        "line": reading.launch.line,
        "counted": [
            {
                "word": flag.spelling,
                "value": mask_secrets(flag.value),
                "means": flag.texts,
                "takes_bytes_per_gpu": getattr(by_flag.get(flag.spelling), "taken_bytes", None),
                "requests": getattr(by_flag.get(flag.spelling), "requests", None),
            }
            for flag in reading.counted
        ],
        "not_counted": [
            {"word": flag.spelling, "value": mask_secrets(flag.value), "why": flag.effect}
            for flag in reading.uncounted
        ],
        "misspelt": reading.misspelt,
        "not_known_to_change_sizes": [flag.spelling for flag in reading.unknown],
        "not_read": list(reading.unread),
    }


# ---- the launch command of a deployment, in its engine's own flags

_NAMES = {
    "v4-flash": "deepseek-ai/DeepSeek-V4-Flash",
    "v4-pro": "deepseek-ai/DeepSeek-V4-Pro",
    "v4.1-flash": "deepseek-ai/DeepSeek-V4.1-Flash",
}
OURS = {*("engine", "gpu", "hbm", "weights", "reserve", "concurrency"), "host_memory"}
"""Inputs that no launch command says."""
_WRITTEN = {
    *OURS, "model", "checkpoint", "gpus", "tp", "dp", "pp", "ep", "draft_layers", "draft_tokens",
}  # fmt: skip
"""Those, and what ``launch_command`` writes."""
_DRAFTING = {"draft-layers", "draft-tokens", OWN_DRAFTS}


def launch_command(
    engine: str, preset: str, layout: Layout, drafts: int = 0, args: str = ""
) -> str:
    """The command that starts one server; ``ConfigError`` where its flags are not known."""
    family = family_of(engine)
    launch = family.launch if family else rl.Launch()
    parts = {
        launch.arguments: True,
        launch.stages: layout.pp > 1,
        launch.replicas: layout.dp > 1,
        launch.drafts: drafts > 0,
    }
    if not launch.arguments or any(needed and not words for words, needed in parts.items()):
        known = " or ".join(replayed_engines())
        raise ConfigError(f"--engine {engine}: choose {known}, or a version of theirs.")
    words = " ".join([launch.program, *(words for words, needed in parts.items() if needed)])
    line = words.format(
        model=shlex.quote(_NAMES.get(preset, preset)),
        ranks=layout.tp * layout.dp,
        count=drafts,
        verified=drafts + 1,
        **vars(layout),
    )
    return f"{line} {args}".rstrip()


def launch_line(
    scenario: Scenario, context_tokens: int, requests: int, typed: Sequence[GivenFlag] = ()
) -> str:
    """The command that starts a deployment, read again and found to hold as many requests.

    Flags that were ``typed`` are kept as they are where they still hold. Empty where the engine
    has no such flags.
    """
    inputs, family = scenario.inputs, family_of(scenario.engine.name)
    assert family is not None
    shown = [each for each in typed if each.flag and each.flag.written and not each.is_secret]
    kept = _still_true(family, inputs, shown)
    drafts = inputs.draft_tokens - (family.launch.counts_verified and inputs.draft_tokens > 0)
    drafts = 0 if any(each.texts.keys() & _DRAFTING for each in kept) else drafts
    try:
        given = list(_flags(family, inputs, kept))
        line = launch_command(
            family.name, inputs.checkpoint or inputs.model, scenario.layout, drafts
        )
        said = line.replace("_", "-").split()
        flags = [w for w in given if w.startswith("-") and w.replace("_", "-") not in said]
        variables = [word for word in given if not word.startswith("-")]
        line = " ".join([*variables, line, *flags])
        read = read_inputs(read_command(line).texts)
        again, *others = resolve(replace(read, **{name: getattr(inputs, name) for name in OURS}))
    except (ConfigError, KeyError):
        return ""
    same = not others and again.layout.gpus == scenario.layout.gpus
    return line if same and max_concurrency(again, context_tokens) == requests else ""


def _still_true(family: rl.Family, inputs: Inputs, typed: Sequence[GivenFlag]) -> list[GivenFlag]:
    drafting = [each for each in typed if each.texts.keys() & _DRAFTING]
    others = [[each] for each in typed if each not in drafting]
    kept = list[GivenFlag]()
    for group in [drafting, *others]:
        texts = merge(family.name, group)
        names = {name.replace("-", "_") for name in texts}
        with suppress(ConfigError):
            read = read_inputs(texts)
            if all(getattr(read, name) == getattr(inputs, name) for name in names):
                kept += group
    return kept


def _flags(family: rl.Family, inputs: Inputs, typed: Sequence[GivenFlag]) -> Iterator[str]:
    """A flag, or a variable, for every input that was given; ``KeyError`` for no flag."""
    said = family.launch.written
    written = {
        name: said[f"{name}={value}"]
        for name, value in vars(inputs).items()
        if f"{name}={value}" in said
    }
    for words in written.values():
        yield words.format(host_gib=(inputs.host_size or 0) / 2**30)
    sized = any("{host_gib" in words for words in written.values())
    skipped = _WRITTEN | set(written) | ({"host_size"} if sized else set())
    for each in typed:
        names = {name.replace("-", "_") for name in merge(family.name, [each])}
        if each.flag and (each.texts.keys() & _DRAFTING or not names & skipped):
            skipped |= names
            yield (
                each.spelling if each.flag.switch else _join(each.flag, each.value, each.spelling)
            )
    for field in fields(Inputs):
        value = getattr(inputs, field.name)
        if field.name in skipped or value == field.default:
            continue
        try:
            yield _flag(family.name, field.name.replace("_", "-"), value)
        except KeyError:
            if (field.name, value) != ("block_tokens", family.block_tokens):  # its own anyway
                raise


def _flag(family: str, name: str, value: Any) -> str:
    """The flag, or variable, that is read as a value; raises ``KeyError``."""
    text = f"{float(value):g}" if isinstance(value, Fraction) else str(value)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else text
    text = str(value >> 20) if name == "logits-limit" else text
    for flag in FAMILIES[family].flags:
        for word in ("1", text) if flag.is_variable else ("on" if flag.switch else text,):
            with suppress(ConfigError):
                read = flag.means.of(word) if flag.means and flag.written else {}
                if [*read] == [name] and READERS[name](read[name]) == value:
                    return flag.name if flag.switch else _join(flag, word, flag.name)
    raise KeyError(name)


def _join(flag: Flag, text: str, spelling: str) -> str:
    return f"{spelling}{'=' if flag.is_variable else ' '}{shlex.quote(text)}"
