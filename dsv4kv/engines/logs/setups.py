"""Configurations that a log may have come from, before its numbers are looked at."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from dsv4kv.engines.formats import Site, stored_formats
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
_V41 = "v4.1-flash"
_V41_DTYPES = {
    "vllm": ("auto", "fp8", _ENTRY, "nvfp4_ds_mla"),
    "sglang": ("auto", "fp8_e4m3"),
}
_SITES: dict[str, tuple[tuple[str, str | None], ...]] = {
    "vllm": (("sm_90", None), ("sm_100", None), ("sm_100", "FLASHMLA_SPARSE_DSV41")),
    "sglang": (("sm_90", None), ("sm_100", "flashmla_mega")),
}
"""GPUs and backends whose formats of V4.1 differ."""


@dataclass(frozen=True)
class Setup:
    """A model and what is served of it, with how well the log's words agree.

    Attributes:
        model: A preset of V4 or V4.1.
        formats: Entry formats.
        draft_layers: Draft layers in addition to the model's own.
        agreeing: Statements of the log that agree: model name, drafts, indexer format.
        arch: What the GPU's kernels are compiled for, where formats go by it (V4.1).
    """

    model: DSV4Config
    formats: CacheFormats
    draft_layers: int
    agreeing: int
    arch: str | None = None


def possible_setups(log: StartupLog) -> Iterator[Setup]:
    """Every model, number of draft layers and indexer format that the log does not rule out.

    Raises:
        ConfigError: The log names a model whose cache is not DeepSeek-V4's, or a cache dtype
            that no published log of it has had.
    """
    named = named_model(log)
    if named == _V41:
        yield from _setups_of_v41(log)
        return
    main = _main_format(log)
    for name in [named] if named else v4_presets():
        model = load_model(name)
        for drafts, drafts_agree in _drafts(log):
            for indexer, indexer_agrees in _indexers(log):
                formats = choose_formats(model, main, main, indexer)
                agreeing = (named is not None) + drafts_agree + indexer_agrees
                yield Setup(model, formats, drafts, agreeing)


def _setups_of_v41(log: StartupLog) -> Iterator[Setup]:
    """Every way in which the newest engine stores V4.1, by GPU, backend and indexer keys."""
    model, dtype = load_model(_V41), _cache_dtype(log)
    engine = {"vllm": "vllm:0.33", "sglang": "sglang:0.5.23"}[log.family]
    if dtype not in _V41_DTYPES[log.family]:
        raise _unknown_dtype(log, dtype, _V41_DTYPES[log.family])
    ranks = (log.whole("tensor_parallel") or 1) // (log.whole("data_parallel") or 1)
    seen = set()
    for (arch, backend), (drafts, agree), (keys, read) in product(
        _SITES[log.family], _drafts(log), _indexers(log)
    ):
        site = Site(engine, model, arch, max(ranks, 1), backend=backend, dtype=dtype)
        asked = "mxfp4" if keys == "mxfp4" else None
        try:
            names = [name for name, _ in stored_formats(site, {"indexer": asked}).values()]
        except ConfigError:  # not on this GPU
            continue
        if (key := (arch, *names, drafts)) not in seen:
            seen.add(key)
            agreeing = 1 + agree + read
            yield Setup(model, choose_formats(model, *names), drafts, agreeing, arch)


def _cache_dtype(log: StartupLog) -> str:
    return (log.text("cache_dtype") or "auto").lower().removeprefix("torch.")


def _unknown_dtype(log: StartupLog, dtype: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"{log.source}: not understood: the cache dtype {dtype!r}. Logs are explained of "
        f"{', '.join(sorted(known))}; another needs rules that were checked against a "
        "published log of it. dsv4kv budget --engine sizes it without its log."
    )


def _main_format(log: StartupLog) -> str:
    """The format of entries; the arguments' spelling is the engines'."""
    dtype = _cache_dtype(log)
    if dtype not in _FORMAT:
        raise _unknown_dtype(log, dtype, _FORMAT)
    return _FORMAT[dtype]


def block_tokens(log: StartupLog) -> int | None:
    """The block or page size of the arguments; other tables' sizes are no such multiples."""
    block, least = log.whole("block"), 64 if named_model(log) == _V41 else 128
    return block if block and block % least == 0 else None


def v4_presets() -> list[str]:
    """Presets that the engines' V4 rules describe."""
    return [name for name in preset_names() if re.fullmatch(r"v4-\w+", name)]


def named_model(log: StartupLog) -> str | None:
    """The preset that the log's model name means; None where it names none.

    Raises:
        ConfigError: A model with another cache.
    """
    reported = (log.text("model") or "").lower()
    preset, made = preset_named(reported), log.text("architecture")
    known = {**dict.fromkeys(v4_presets(), "V4"), _V41: "V41"}
    generation = re.match(r"Deepseek(V4|V41)(?!\d)", made) if made else None
    if preset in known and (not made or (generation and generation[1] == known[preset])):
        return preset
    unlike = bool(made and (not generation or preset in known))
    if unlike or preset or _OTHER_FAMILIES.search(reported):
        another = made if unlike else reported
        raise ConfigError(
            f"{log.source}: not understood: the log is of {another!r}, whose cache the rules do "
            f"not describe: they are those of {', '.join(known)}. dsv4kv budget --model "
            "sizes other models without their logs."
        )
    return _V41 if generation and generation[1] == "V41" else None


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
