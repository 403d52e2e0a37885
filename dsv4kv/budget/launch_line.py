"""The launch command of a deployment, in its engine's own flags."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any, NamedTuple

from dsv4kv.budget.answer import answer
from dsv4kv.budget.fit import max_concurrency
from dsv4kv.budget.flags import GivenFlag, merge, take_flags
from dsv4kv.budget.gpus import gpu_names
from dsv4kv.budget.inputs import DEFAULT_GPU, READERS, Inputs, read_inputs
from dsv4kv.budget.launch import read_command
from dsv4kv.budget.layout import Layout
from dsv4kv.budget.scenario import Scenario, resolve
from dsv4kv.engines.flags import OWN_DRAFTS, Flag, find_flag, flag_for, flags_of
from dsv4kv.engines.logs.explain import Change, Explanation, shown_tokens
from dsv4kv.engines.logs.read import NAMES, StartupLog, draft_method
from dsv4kv.engines.logs.recover import Recovery
from dsv4kv.engines.names import FAMILIES, family_of, find_engine, replayed_engines
from dsv4kv.engines.rule import Family, Launch
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import preset_named
from dsv4kv.units import format_bytes

_NAMES = {
    "v4-flash": "deepseek-ai/DeepSeek-V4-Flash",
    "v4-pro": "deepseek-ai/DeepSeek-V4-Pro",
    "v4.1-flash": "deepseek-ai/DeepSeek-V4.1-Flash",
}
OURS = {
    *("engine", "gpu", "hbm", "weights", "reserve", "concurrency"),
    "host_memory",
}
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
    launch = family.launch if family else Launch()
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
        flags = [word for word in given if word.startswith("-") and word not in line.split()]
        variables = [word for word in given if not word.startswith("-")]
        line = " ".join([*variables, line, *flags])
        read = read_inputs(read_command(line).texts)
        again, *others = resolve(replace(read, **{name: getattr(inputs, name) for name in OURS}))
    except (ConfigError, KeyError):
        return ""
    same = not others and again.layout.gpus == scenario.layout.gpus
    return line if same and max_concurrency(again, context_tokens) == requests else ""


def _still_true(family: Family, inputs: Inputs, typed: Sequence[GivenFlag]) -> list[GivenFlag]:
    """Flags whose inputs still have these values; flags of drafts all or none."""
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


def _flags(family: Family, inputs: Inputs, typed: Sequence[GivenFlag]) -> Iterator[str]:
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
            yield each.flag.name if each.flag.switch else _join(each.flag, each.value)
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
    for flag in flags_of(family):
        for word in ("1", text) if flag.is_variable else ("on" if flag.switch else text,):
            with suppress(ConfigError):
                read = flag.means.of(word) if flag.means and flag.written else {}
                if [*read] == [name] and READERS[name](read[name]) == value:
                    return flag.name if flag.switch else _join(flag, word)
    raise KeyError(name)


def _join(flag: Flag, text: str) -> str:
    return f"{flag.name}{'=' if flag.is_variable else ' '}{shlex.quote(text)}"


# ---- the command of a log -----------------------------------------------------------------------

_SAME_WEIGHTS = 0.1
"""Share by which a log's weights may differ from those that are derived of its model."""


class LoggedLaunch(NamedTuple):
    """The command of a log with one change, and the options with which ``budget`` prints it.

    ``example`` is a GPU that holds as much, where neither the log nor the user names one.
    """

    change: Change
    tokens: int  # of each replica
    replicas: int
    command: str
    options: dict[str, str]
    example: str


def with_replicas(log: StartupLog, found: Recovery, explained: Explanation) -> Explanation:
    """The explanation with replicas instead of tensor parallelism among its changes.

    They hold more weights: what these take is not left for their caches.
    """
    launch, dp = found.engine.family.launch, log.whole("data_parallel") or 1
    tp = (log.whole("tensor_parallel") or 1) // (dp if launch.tp_spans_replicas else 1)
    if tp < 2 or not explained.exact or found.engine.unit == "slot":
        return explained
    count, now, limit = tp * dp, explained.shown_tokens, found.deployment.concurrency
    more = _more_weights(log, found, Layout(tp, dp), Layout(1, count, 1, count))
    memory, spread = found.available_bytes - (more or 0), found.deployment
    if more is None or memory <= 0:
        return explained
    if launch.tp_spans_replicas and limit:  # which ranks of one server share
        spread = replace(spread, concurrency=max(1, limit // tp))
    try:
        tokens = shown_tokens(found.engine, spread, memory) * count
    except ConfigError:  # nothing is left for a cache
        return explained
    what = f"{launch.replicas.format(dp=count, ep=count)} instead of TP{tp}, all replicas"
    what += f", {format_bytes(more)} more weights each"
    changes = (*explained.changes, Change(what, tokens, tokens - now * dp, memory))
    by_gain = sorted(changes, key=lambda each: (not each.requests, -abs(each.gain_tokens)))
    return replace(explained, changes=tuple(by_gain))


def _more_weights(log: StartupLog, found: Recovery, old: Layout, new: Layout) -> int | None:
    """Bytes of a rank; None where the weights are not known, or the log's are others."""
    deployment, step = found.deployment, log.whole("batched") or found.deployment.in_flight_tokens
    texts = {
        "model": log.given_file or deployment.model.name,
        "checkpoint": _model_of(log, found),
        "engine": found.engine.name,
        "step-tokens": str(step),
        "draft-layers": str(deployment.draft_layers),
        "draft-tokens": str(deployment.draft_tokens),
    }
    old_ep = old.tp * old.dp if log.is_on("whole_experts") else log.whole("expert_parallel")
    held = []
    for layout, ep in ((old, old_ep), (new, new.ep)):
        sizes = {"tp": layout.tp, "dp": layout.dp, "ep": ep or 1}
        given = texts | {name: str(size) for name, size in sizes.items()}
        try:
            held.append(max(resolve(read_inputs(given))[0].weight_bytes))
        except ConfigError:
            return None
    logged = log.memory.get("weights", 0.0) * 2**30
    if logged and abs(logged - held[0]) > _SAME_WEIGHTS * logged:
        return None
    return max(0, held[1] - held[0])


def logged_launch(
    log: StartupLog, found: Recovery, explained: Explanation, gpu: str | None
) -> LoggedLaunch | None:
    """The first gain that flags say, with the log's flags and in its KV memory.

    None where the log prints no flags, or ``budget`` would print another number.
    """
    newest, own = find_engine(log.family).name, found.engine.name
    flags = _logged_flags(log, found)
    for change in explained.changes if flags else ():
        command = _changed(log, found, flags, change.what) if change.gains else ""
        if not command:
            continue
        try:
            texts = read_command(command).texts
        except ConfigError:  # no whole flag
            continue
        options = {"kv-memory": str(change.available_bytes)}
        options |= {} if own == newest else {"engine": own}
        for name in [gpu] if gpu else [DEFAULT_GPU, *gpu_names()]:
            with suppress(ConfigError):  # it does not fit
                again = answer(read_inputs({**texts, **options, "gpu": name}))
                tokens = again.capacity.printed_tokens if again.capacity else None
                replicas = again.scenario.layout.dp
                if (
                    tokens
                    and change.printed_tokens in (tokens, tokens * replicas)
                    and again.max_concurrency >= (change.requests or 0) * replicas
                ):
                    options |= {"gpu": gpu} if gpu else {}
                    example = "" if gpu or name == DEFAULT_GPU else name
                    return LoggedLaunch(change, tokens, replicas, command, options, example)
    return None


def _logged_flags(log: StartupLog, found: Recovery) -> dict[str, str]:
    """Flags of sizes that a log prints, ``""`` for a switch; none if it does not say its ranks.

    SGLang prints the limit of requests and the pools of each rank, typed or derived.
    """
    flags, launch = dict[str, str](), FAMILIES[log.family].launch
    if log.text("tensor_parallel") is None:
        return {}
    for key, names in NAMES.items():
        spelled = (find_flag(log.family, f"--{name}") for name in names)
        flag, text = next(filter(None, spelled), None), log.text(key)
        if flag is None or text is None or key == "model" or text.lower() in ("auto", "false"):
            continue
        if text != "1" or key == "tensor_parallel":
            flags[flag.name] = "" if flag.switch else text
    if running := log.readings[0].whole("running"):
        shared = running * (log.sharers if found.engine.shares_limits else 1)
        flags.setdefault(flag_for(log.family, "request-limit"), str(shared))
    if ratio := found.deployment.window_ratio:
        flags.setdefault(flag_for(log.family, "window-ratio"), f"{ratio:g}")
    if method := draft_method(log):
        if not (count := log.whole("draft_tokens") or log.whole("configured_drafts")):
            return {}
        words = launch.drafts.format(count=count - launch.counts_verified, verified=count)
        words = words.replace("EAGLE", method.upper()).replace('"mtp"', f'"{method}"')
        flags |= dict(take_flags(shlex.split(words), ())[0])
    return flags


def _changed(log: StartupLog, found: Recovery, flags: dict[str, str], what: str) -> str:
    """The command with a change as ``Change`` says it; empty if that is no flag."""
    family, launch = found.engine.family.name, found.engine.family.launch
    words = shlex.split(what.partition(" (")[0].partition(" instead of ")[0])
    pairs, variables = list[tuple[str, str]](), list[str]()
    if words[0] == "without":
        kept = {n: text for n, text in flags.items() if not n.startswith("--speculative-")}
        flags = kept if words[1] in flags else {}
    else:
        pairs, variables = take_flags(words, ())
    if not all("=" in word for word in variables):
        return ""
    if launch.replicas.partition(" ")[0] in words and not launch.tp_spans_replicas:
        flags = flags | {flag_for(family, "tp"): "1"}
    flags = flags | {flag.name: text for name, text in pairs if (flag := find_flag(family, name))}
    if found.deployment.state_bytes == 2:
        variables = [launch.written["state=bf16"], *variables]
    model = shlex.quote(_model_of(log, found))
    start = f"{launch.program} {launch.arguments}".partition("{model}")[0]
    given = (f"{name} {shlex.quote(text)}" if text else name for name, text in flags.items())
    return " ".join([*variables, f"{start}{model}", *given]) if flags else ""


def _model_of(log: StartupLog, found: Recovery) -> str:
    model, preset = log.text("model") or "", found.deployment.model.name
    return model if preset_named(model) else _NAMES.get(preset, preset)
