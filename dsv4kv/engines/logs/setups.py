"""Configurations that a log may have come from, before its numbers are looked at."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dsv4kv.engines.logs.read import StartupLog
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model, preset_names
from dsv4kv.model.schema import CacheFormats, choose_formats

_DRAFT_LAYERS = {"mtp": 1, "eagle": 1, "nextn": 1, "dspark": 3}
_OTHER_FAMILIES = re.compile(
    r"v4\.\d|v3|v2|\br1\b|qwen|llama|mi[sx]tral|gemma|glm|kimi|gpt|phi-|minimax|ernie|hunyuan"
)
_ENTRY = "fp8_ds_mla"
_FORMAT = {"bf16": "bf16", "bfloat16": "bf16", "fp8_inc": "fp8"}
_FORMAT |= dict.fromkeys(("auto", "fp8", "fp8_e4m3", _ENTRY), _ENTRY)
_V4 = "DeepseekV4"


@dataclass(frozen=True)
class Setup:
    """A model and what is served of it, with how well the log's words agree.

    Attributes:
        model: A V4 preset.
        formats: Entry formats.
        draft_layers: Draft layers in addition to the model's own.
        agreeing: Statements of the log that agree: model name, drafts, indexer format.
    """

    model: DSV4Config
    formats: CacheFormats
    draft_layers: int
    agreeing: int


def possible_setups(log: StartupLog) -> Iterator[Setup]:
    """Every model, number of draft layers and indexer format that the log does not rule out.

    Raises:
        ConfigError: The log names a model whose cache is not DeepSeek-V4's, or a cache dtype
            that no published log of it has had.
    """
    named, main = named_model(log), _main_format(log)
    for name in [named] if named else v4_presets():
        model = load_model(name)
        for drafts, drafts_agree in _drafts(log):
            for indexer, indexer_agrees in _indexers(log):
                formats = choose_formats(model, main, main, indexer)
                agreeing = (named is not None) + drafts_agree + indexer_agrees
                yield Setup(model, formats, drafts, agreeing)


def _main_format(log: StartupLog) -> str:
    """The format of entries; the arguments' spelling is the engines'."""
    dtype = (log.text("cache_dtype") or "auto").lower().removeprefix("torch.")
    if dtype not in _FORMAT:
        raise ConfigError(
            f"{log.source}: not understood: the cache dtype {dtype!r}. Logs are explained of "
            f"{', '.join(sorted(_FORMAT))}; another needs rules that were held against a "
            "published log of it. dsv4kv budget --engine sizes it without its log."
        )
    return _FORMAT[dtype]


def block_tokens(log: StartupLog) -> int | None:
    """The block or page size of the arguments; other tables' sizes are no multiples of 128."""
    block = log.whole("block")
    return block if block and block % 128 == 0 else None


def v4_presets() -> list[str]:
    """Presets that the engines' V4 rules describe."""
    return [name for name in preset_names() if re.fullmatch(r"v4-\w+", name)]


def named_model(log: StartupLog) -> str | None:
    """The preset that the log's model name means; None where it names none.

    Raises:
        ConfigError: A model with another cache.
    """
    reported = (log.text("model") or "").lower()
    preset = preset_named(reported)
    if preset in v4_presets():
        return preset
    made = log.text("architecture") or _V4
    another = made if not re.match(rf"{_V4}(?!\d)", made) else reported
    if another != reported or preset or _OTHER_FAMILIES.search(reported):
        raise ConfigError(
            f"{log.source}: not understood: the log is of {another!r}, whose cache the rules do "
            f"not describe: they are those of {', '.join(v4_presets())}. dsv4kv budget --model "
            "sizes other models without their logs."
        )
    return None


def preset_named(text: str) -> str | None:
    """The preset that a model's name or path means; None where it means none."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower())
    for preset in preset_names():
        if re.search(rf"(^|[-a-z]){re.escape(preset)}(-|$)", name):
            return preset
    return None


def draft_method(log: StartupLog) -> str | None:
    """The speculative method the log names."""
    method = log.text("method")
    return method.lower() if method else None


def _drafts(log: StartupLog) -> list[tuple[int, bool]]:
    """Draft layers that are possible, with whether the log names them."""
    method = draft_method(log)
    if method is None:
        return [(0, False), (1, False), (3, False)]
    for part, layers in _DRAFT_LAYERS.items():
        if part in method:
            return [(layers, True)]
    return [(0, False), (1, False), (3, False)]


def _indexers(log: StartupLog) -> list[tuple[str, bool]]:
    fp4 = log.text("fp4_indexer")
    if fp4 is None:
        return [("fp8", False), ("mxfp4", False)]
    return [("mxfp4" if fp4.lower() == "true" else "fp8", True)]
