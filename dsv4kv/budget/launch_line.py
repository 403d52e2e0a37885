"""The launch command of a deployment, in its engine's own flags."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from dsv4kv.budget.fit import max_concurrency
from dsv4kv.budget.flags import GivenFlag, merge
from dsv4kv.budget.inputs import READERS, Inputs, read_inputs
from dsv4kv.budget.launch import read_command
from dsv4kv.budget.layout import Layout
from dsv4kv.budget.scenario import Scenario, resolve
from dsv4kv.engines.flags import OWN_DRAFTS, Flag, flags_of
from dsv4kv.engines.names import family_of, replayed_engines
from dsv4kv.engines.rule import Family, Launch
from dsv4kv.errors import ConfigError

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
    for flag in flags_of(family):
        for word in ("1", text) if flag.is_variable else ("on" if flag.switch else text,):
            with suppress(ConfigError):
                read = flag.means.of(word) if flag.means and flag.written else {}
                if [*read] == [name] and READERS[name](read[name]) == value:
                    return flag.name if flag.switch else _join(flag, word, flag.name)
    raise KeyError(name)


def _join(flag: Flag, text: str, spelling: str) -> str:
    return f"{spelling}{'=' if flag.is_variable else ' '}{shlex.quote(text)}"
