"""The launch command of a deployment, in its engine's own flags."""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from dsv4kv.budget.fit import max_concurrency
from dsv4kv.budget.inputs import READERS, Inputs
from dsv4kv.budget.launch import read_command
from dsv4kv.budget.layout import Layout
from dsv4kv.budget.scenario import Scenario, resolve
from dsv4kv.engines.flags import Flag, flags_of
from dsv4kv.engines.names import family_of, replayed_engines
from dsv4kv.engines.rule import Launch
from dsv4kv.errors import ConfigError

_NAMES = {
    "v4-flash": "deepseek-ai/DeepSeek-V4-Flash",
    "v4-pro": "deepseek-ai/DeepSeek-V4-Pro",
    "v4.1-flash": "deepseek-ai/DeepSeek-V4.1-Flash",
}
OURS = {
    *("engine", "gpu", "hbm", "weights", "weight_bytes_per_param", "reserve", "concurrency"),
    "host_memory",
}
"""Inputs that no launch command says."""
_WRITTEN = {
    *OURS, "model", "checkpoint", "gpus", "tp", "dp", "pp", "ep", "draft_layers", "draft_tokens",
}  # fmt: skip
"""Those, and what ``launch_command`` writes."""


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


def launch_line(scenario: Scenario, context_tokens: int, requests: int) -> str:
    """The command that starts a deployment, read again and found to hold as many requests.

    Empty where the engine has no such flags.
    """
    inputs, family = scenario.inputs, family_of(scenario.engine.name)
    assert family is not None
    drafts = inputs.draft_tokens - (family.launch.counts_verified and inputs.draft_tokens > 0)
    try:
        given = list(_flags(family.name, family.launch, inputs))
        line = launch_command(
            family.name, inputs.checkpoint or inputs.model, scenario.layout, drafts
        )
        flags = [word for word in given if word.startswith("-") and word not in line.split()]
        variables = [word for word in given if not word.startswith("-")]
        line = " ".join([*variables, line, *flags])
        read = read_command(line).texts
        texts = {name.replace("-", "_"): READERS[name](text) for name, text in read.items()}
        ours = {name: getattr(inputs, name) for name in OURS}
        again, *others = resolve(replace(Inputs(**texts), **ours))
    except (ConfigError, KeyError):
        return ""
    same = not others and again.layout.gpus == scenario.layout.gpus
    return line if same and max_concurrency(again, context_tokens) == requests else ""


def _flags(family: str, launch: Launch, inputs: Inputs) -> Iterator[str]:
    """A flag, or a variable, for every input that was given; ``KeyError`` for no flag."""
    written = {
        name: launch.written[f"{name}={value}"]
        for name, value in vars(inputs).items()
        if f"{name}={value}" in launch.written
    }
    for words in written.values():
        yield words.format(host_gib=(inputs.host_size or 0) / 2**30)
    sized = any("{host_gib" in words for words in written.values())
    skipped = _WRITTEN | set(written) | ({"host_size"} if sized else set())
    for field in fields(Inputs):
        value = getattr(inputs, field.name)
        if field.name not in skipped and value != field.default:
            yield _flag(family, field.name.replace("_", "-"), value)


def _flag(family: str, name: str, value: Any) -> str:
    text = f"{float(value):g}" if isinstance(value, Fraction) else str(value)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else text
    text = str(value >> 20) if name == "logits-limit" else text
    for flag in flags_of(family):
        if flag.means and flag.means.input == name:
            return _join(flag, text)
        if flag.means and (flag.switch or flag.is_variable):
            with suppress(ConfigError):
                if flag.means.of("1" if flag.is_variable else "on") == {name: str(value)}:
                    return flag.name if flag.switch else _join(flag, "1")
    raise KeyError(name)


def _join(flag: Flag, text: str) -> str:
    return f"{flag.name}{'=' if flag.is_variable else ' '}{shlex.quote(text)}"
