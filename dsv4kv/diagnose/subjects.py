"""What is looked at: a launch command, the log of a start, or the result of a benchmark.

Commands are read as ``dsv4kv budget --command`` reads them, arguments in a log by the engines' own
echo of them, results as ``dsv4kv replay calibrate`` reads them.
"""

import ast
import json
import math
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeGuard

from dsv4kv.budget.gpus import gpu_names, load_gpu
from dsv4kv.budget.inputs import GivenFlag, merge, read_flag
from dsv4kv.budget.servers import find_launches
from dsv4kv.choices import listed
from dsv4kv.diagnose.faults import load_faults, plain, release
from dsv4kv.engines.logs import find_fields, read_lines, scan_log
from dsv4kv.engines.names import FAMILIES, find_flag, replayed_engines
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.files import open_regular
from dsv4kv.model.presets import preset_named
from dsv4kv.replay.clock.measured import read_runs
from dsv4kv.traces.files import json_records, open_trace
from dsv4kv.traces.results import RESULTS
from dsv4kv.units import counted

Kind = Literal["command", "log", "result"]
_MOST_LINES, _MOST_TEXT = 20_000, 2**24  # of a log; a start has said everything by then
_FIRST_BYTES = 4096
_LOGGED = re.compile(
    r"(?m)^(?:\([\w ]+ pid=\d+\)\s|\[\d{4}-\d\d-\d\d |(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d "
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[TRT-LLM\])"
)
_RAISED = re.compile(
    r"Traceback \(most recent call last\):|assert self\."
    r"|(?m:^[^#'\"\n]*\b\w+(?:Error|Exception)\b)"
)
_COLLECTED = re.compile(r"[\w.-]+ +\| |\S+Z (?:stdout|stderr) [FP] |\[rank\d+\]: ")
"""What docker compose, Kubernetes and torchrun put before the lines of a server."""
_OTHER_MODEL = re.compile(
    r"(?i)qwen|llama|mi[sx]tral|gemma|glm|kimi|gpt|phi-|minimax|ernie|hunyuan|granite|nemotron"
)
_V4_PARSER = re.compile(r"deepseek[-_]?v4(?![.\d])", re.IGNORECASE)
_GPU_NAME = re.compile(r"NVIDIA (?:RTX )?([A-Z]{1,3}\d{2,4}(?:-3e)?)")
_MODEL_NAME = re.compile(r"(?i)DeepSeek-?V[\d.]+(?:-?(?:Flash|Pro))?")
_UNTAGGED = (0, 1)  # of vLLM: the version of builds from no tag, whatever they were built from
_ECHO = re.compile(r"non-default args: (\{.*)|\b(ServerArgs\(.*)")
_PAIR = re.compile(
    r"(?<!\w)['\"]?(\w+)['\"]?\s*[:=]\s*"
    r"('(?:[^'\\]|\\.)*'|\"[^\"]*\"|\w+\([^()]*\)|\{[^{}]*\}|[^,(){}\s]+)"
)


@dataclass(frozen=True)
class Subject:
    """One thing that is looked at."""

    title: str  # what it is, for who reads
    kind: Kind
    engine: str  # ``vllm`` or ``sglang``, ``bench`` of a result; empty where that is not known
    version: str | None = None  # of the engine; None, here and below, where it is not known
    flags: Mapping[str, str] | None = None  # by name, dashes for underscores
    variables: Mapping[str, str] | None = field(default_factory=dict)
    """The environment, as far as a command sets it; None of a log, which is silent."""
    inputs: Mapping[str, str] | None = None  # what of ours the flags mean
    fields: Mapping[str, str] = field(default_factory=dict)  # of a result, with what follows
    text: str = ""  # what is searched for lines
    model: str | None = (
        None  # a preset, ``v4`` where no more is known, ``other`` for another family
    )
    arch: str | None = None  # what the GPU's kernels are compiled for


def read_subjects(given: str, engine: str | None = None, gpu: str | None = None) -> list[Subject]:
    """Everything in a command, or a file of commands, a log, or runs of a benchmark.

    ``engine`` may have its version: ``vllm:0.33``. Raises ``ConfigError`` for what is unreadable
    or unknown.
    """
    family, _, version = (engine or "").partition(":")
    known = replayed_engines()
    if family and family not in known:
        raise ConfigError(
            f"--engine {engine}: give {' or '.join(known)}, with a version: {known[0]}:0.33."
        )
    if version:
        release(version)
    arch = load_gpu(gpu).arch if gpu else None
    path = as_path(given)
    found = _of_file(path, family, version) if path else _of_commands(given, "the command")
    if not found:
        raise ConfigError(
            f"{given[:200]}: nothing is known of it: give a launch command of vLLM or SGLang, a "
            "file with some, the log of a start, or a benchmark's result file."
        )
    for number, subject in enumerate(found):
        of = subject.engine or family
        if subject.kind != "result" and of == (family or of):
            # what was stated goes before what was read, for the engine that it was stated of
            stated = version if family == of and version else subject.version
            found[number] = replace(subject, engine=of, version=stated, arch=arch or subject.arch)
    return found


def as_path(given: str) -> Path | None:
    """The file that was given; None of a command. Raises ``ConfigError`` for neither."""
    text = given.strip()
    if not text:
        raise ConfigError("nothing to look at: give a command, or a file.")
    path = Path(given) if len(given) < 1000 and "\n" not in given else None
    why = "there is no such file"
    try:
        if path is not None and (text == "-" or stat.S_ISREG(path.stat().st_mode)):
            return path
        if path is not None:
            raise ConfigError(f"{given}: it is a folder, a pipe or a device: give a file.")
    except PermissionError as error:
        why = f"cannot be read ({error.strerror})"
    except (OSError, ValueError):
        pass
    if " " not in text:
        raise ConfigError(f"{given[:200]}: {why}.")
    return None


def recognise(path: Path) -> tuple[Kind, str]:
    """What a file is, and its text if it is no result; what is nothing else is ``command``."""
    if _has_results(path):
        return "result", ""
    lines, left = [], _MOST_TEXT
    for collected in islice(read_lines(path), _MOST_LINES):
        found = _COLLECTED.match(collected)
        lines.append(collected[found.end() :] if found else collected)
        left -= len(lines[-1]) + 1
        if left < 0:
            break
    text = "\n".join(lines)
    is_log = (
        len(_LOGGED.findall(text)) > 1
        or _ECHO.search(text)
        or _RAISED.search(text)
        or any(map(find_fields, lines))
    )
    return "log" if is_log else "command", text


def _of_file(path: Path, family: str, stated: str) -> list[Subject]:
    kind, text = recognise(path)
    if kind == "log":
        return [_of_log(text, path.name, family, stated)]
    if kind == "command":
        return _of_commands(text, path.name)
    subjects, before = list[Subject](), dict[str, Mapping[str, Any]]()
    for name, run in read_runs(path):
        # equal random prompts of one seed have their lengths in common, which a seed draws
        lengths = run.get("input_lens")
        totals = [run.get(key) for key in ("total_input_tokens", "total_input")]
        is_known = _is_random(run) and (lengths or any(totals))
        prompts = json.dumps(lengths or totals) if is_known else ""
        fields = facts_of(run, before.get(prompts))
        subjects.append(Subject(name, "result", "bench", fields=fields))
        if prompts:
            before[prompts] = run
    return subjects


def _has_results(path: Path) -> bool:
    """Whether a file begins with the result of a benchmark.

    Raises ``ConfigError`` if it begins with what lint itself printed.
    """
    try:
        with open_regular(path) as file:
            begin = file.read(_FIRST_BYTES).lstrip()
        if not begin.startswith((b"{", b"[")):
            return False
        with open_trace(path) as lines:
            first = next(json_records(lines), {})
    except (OSError, TraceError):
        return False
    if {"looked_at", "known_faults"} <= first.keys():
        findings = first.get("findings")
        found = len(findings) if isinstance(findings, list) else 0
        raise ConfigError(
            f"{path}: this is what lint --json printed, with {counted(found, 'finding')}: give "
            "the command, log or result that it looked at."
        )
    return bool(RESULTS.marks & first.keys())


def _of_commands(text: str, source: str) -> list[Subject]:
    try:
        launches = list(find_launches(text))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    found = []
    for launch in launches:
        family = FAMILIES[launch.family].base or launch.family
        if family in replayed_engines():
            flags = {_usual(family, name): value for name, value in launch.flags}
            title = launch.title if launch.line == 1 else f"{launch.title} (line {launch.line})"
            inputs = _inputs(family, [*launch.variables.items(), *launch.flags])
            version, variables = _tagged(launch.version), dict(launch.variables)
            known = (family, version, flags, variables, inputs)
            found.append(Subject(title, "command", *known, text=text, model=_model(flags)))
    if launches and not found:
        others = listed(dict.fromkeys(FAMILIES[each.family].title for each in launches))
        raise ConfigError(
            f"{source}: it starts {others}, of which no fault is known: lint knows those of "
            f"{listed([FAMILIES[name].title for name in replayed_engines()])}."
        )
    return found


def _inputs(family: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    flags: list[GivenFlag] = []
    for name, value in pairs:
        with suppress(ConfigError):
            flags.append(read_flag(family, name, value))
    with suppress(ConfigError):
        return merge(family, flags)
    return {name: text for flag in flags for name, text in flag.texts.items()}


def _model(flags: Mapping[str, str]) -> str | None:
    named = [flags.get(name, "") for name in ("--model", "--model-path", "--served-model-name")]
    preset = next((found for name in named if (found := preset_named(name))), None)
    if preset:
        return preset
    parsers = ("--tokenizer-mode", "--reasoning-parser", "--tool-call-parser")
    if any(_V4_PARSER.search(flags.get(name, "")) for name in parsers):
        return "v4"
    return "other" if any(map(_OTHER_MODEL.search, named)) else None


def _tagged(version: str | None) -> str | None:
    """A version that says what was built; None of a build from no tag."""
    untagged = version is None or release(version)[:2] == _UNTAGGED
    return None if untagged else version


def _usual(family: str, spelling: str) -> str:
    """A flag as its engine usually spells it: ``-sc`` is ``--speculative-config``."""
    flag = find_flag(family, spelling)
    return flag.name if flag else plain(spelling)


def _of_log(text: str, source: str, family: str, stated: str) -> Subject:
    lines = text.splitlines()
    # the engine whose sizes or arguments it prints, whose name it has most often, the given one,
    # and the one with a known fault that has a line in it
    log, _ = scan_log(lines, source)
    marked = [name for name, row in FAMILIES.items() if row.log_mark and row.log_mark in text]
    engine = log.family or max(
        dict.fromkeys([*replayed_engines(), *marked]),
        key=lambda name: (
            FAMILIES[name].log_mark in text,
            text.lower().count(name),
            name == family,
            any(
                each.line and re.search(each.line, text)
                for fault in load_faults()
                if fault.engine == name
                for each in fault.when
            ),
        ),
    )
    shown = (stated if family == engine else "") or log.version or "(version unknown)"
    given = next(filter(None, map(_echoed, lines)), None)
    flags = given and {_usual(engine, f"--{name}"): each for name, each in given.items()}
    gpu, name = _GPU_NAME.search(text), _MODEL_NAME.search(text)
    device = gpu[1].lower() if gpu else ""
    return Subject(
        f"{source}: {engine} {shown}",
        "log",
        engine,
        _tagged(log.version),
        flags,
        None,
        None if flags is None else _inputs(engine, flags.items()),
        text=text,
        model=_model(flags or {})
        or _model({"--model": name[0] if name else ""})
        or ("v4" if "DeepseekV4ForCausalLM" in text else None),
        arch=load_gpu(device).arch if device in gpu_names() else None,
    )


def _echoed(line: str) -> dict[str, str] | None:
    """Arguments that an engine prints as it starts: a dictionary, or a call of ``ServerArgs``."""
    match = _ECHO.search(line)
    if match is None:
        return None
    text = next(filter(None, match.groups())).rstrip()
    given = _literal(text)
    if not isinstance(given, dict):  # something in it is no literal
        given = {name: _literal(value) for name, value in _PAIR.findall(text)}
    written = dict[str, str]()
    for name, value in given.items():
        if isinstance(value, bool):
            written[name if value else f"no_{name}"] = ""
        elif value is not None:
            written[name] = str(value)
            if isinstance(value, dict | list):
                with suppress(TypeError, ValueError):
                    written[name] = json.dumps(value)
    return written


def _literal(text: str) -> Any:
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Call):
            return {
                word.arg: _literal(ast.unparse(word.value)) for word in tree.keywords if word.arg
            }
        value = ast.literal_eval(tree)
        str(value)  # which an integer of thousands of digits refuses
        return value
    return text


_EVEN = 0.02  # prompts that differ less in length are random: only their text is tokenized again


def facts_of(run: Mapping[str, Any], same: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Plain fields as text, and what follows from them.

    * ``failed_requests``: that were sent and did not succeed;
    * ``random_tokens``: ``yes`` where prompts are random tokens;
    * ``rounds``: requests for each that ran concurrently, where the rate is unlimited;
    * ``at_once``: requests in flight, where the client keeps their number;
    * ``ttft_ms`` and ``tpot_ms``: medians, else means;
    * ``prompt_tokens_per_s``: of one prompt, by the median TTFT;
    * ``waiting_tokens_per_s``: of the prompts of all requests together, by ``ttft_ms``;
    * ``repeats``: ``yes`` where a run before it in the file sent the same prompts to the same
      server, and ``repeats_ttft``: this one's median TTFT as a share of that one's, where it has
      no lighter load, which makes the first token sooner by itself;
    * ``full_outputs``: share of answers that are as long as the longest, where every one is known.

    ``same``: the last run before it in the file that sent the same prompts.
    """
    facts = {key: str(value) for key, value in run.items() if isinstance(value, str | int | float)}
    completed, at_once = _number(run, "completed"), _number(run, "max_concurrency")
    asked, errors = _number(run, "num_prompts") or completed or 0.0, run.get("errors")
    by_error = sum(map(bool, errors)) if isinstance(errors, list) else 0
    failed = max(_number(run, "failed") or 0, asked - (completed or 0.0), by_error)
    facts["failed_requests"] = str(int(failed))
    if _is_random(run):
        facts["random_tokens"] = "yes"
    prompts = _number(run, "total_input_tokens", "total_input")
    mean = prompts / completed if prompts and completed else None
    ttft, tpot = (
        _number(run, *(f"{each}_{name}_ms" for each in ("median", "p50", "mean")))
        for name in ("ttft", "tpot")
    )
    median_ttft, paced = _number(run, "median_ttft_ms"), _number(run, "request_rate")
    found = {
        "rounds": completed / at_once if completed and at_once and not paced else None,
        "at_once": at_once,
        "ttft_ms": ttft,
        "tpot_ms": tpot,
        "prompt_tokens_per_s": mean / median_ttft * 1e3 if mean and median_ttft else None,
        "waiting_tokens_per_s": at_once * mean / ttft * 1e3 if at_once and mean and ttft else None,
    }
    if same is not None:
        facts["repeats"] = "yes"
        earlier = _number(same, "median_ttft_ms")
        loads = ("request_rate", "max_concurrency")  # without a number there is no limit
        as_loaded = all(
            (_number(run, key) or math.inf) >= (_number(same, key) or math.inf) for key in loads
        )
        if median_ttft and earlier and as_loaded:
            found["repeats_ttft"] = median_ttft / earlier
    outputs = run.get("output_lens")
    if _are_whole(outputs) and max(outputs) > 1:
        found["full_outputs"] = outputs.count(max(outputs)) / len(outputs)
    return facts | {name: f"{value:g}" for name, value in found.items() if value}


def _is_random(run: Mapping[str, Any]) -> bool:
    named = run.get("dataset_name")
    if named is not None:
        return named in ("random", "random-ids")
    if run.get("random_input_len") is not None and not run.get("sharegpt_output_len"):
        return True
    inputs = run.get("input_lens")  # vLLM names no dataset, and no text is as long as another
    if not _are_whole(inputs) or len(inputs) < 2:
        return False
    return bool(max(inputs) - min(inputs) <= _EVEN * max(inputs))


def _are_whole(numbers: Any) -> TypeGuard[list[int]]:
    whole = isinstance(numbers, list) and set(map(type, numbers)) == {int}
    return whole and max(map(abs, numbers)) < 2**62


def _number(run: Mapping[str, Any], *keys: str) -> float | None:
    found = (run.get(key) for key in keys)
    return next((float(x) for x in found if isinstance(x, int | float) and 0 < x < 2**62), None)
