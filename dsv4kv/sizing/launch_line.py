"""The launch command of a deployment, in its engine's own flags."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.fit import max_concurrency
from dsv4kv.sizing.flags import FLAGS, Flag
from dsv4kv.sizing.inputs import READERS, Inputs
from dsv4kv.sizing.launch import read_command
from dsv4kv.sizing.layout import Layout
from dsv4kv.sizing.scenario import Scenario, resolve

_NAMES = {
    "v4-flash": "deepseek-ai/DeepSeek-V4-Flash",
    "v4-pro": "deepseek-ai/DeepSeek-V4-Pro",
    "v4.1-flash": "deepseek-ai/DeepSeek-V4.1-Flash",
}
_DRAFTS = {
    "sglang": " --speculative-algorithm EAGLE --speculative-num-steps {0} "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens {1}",
    "vllm": ' --speculative-config \'{{"method": "mtp", "num_speculative_tokens": {0}}}\'',
}
_WRITTEN = {
    ("vllm", "indexer_format", "mxfp4"): "--attention-config '{\"use_fp4_indexer_cache\": true}'",
    ("sglang", "state", "bf16"): "SGLANG_DSV4_COMPRESS_STATE_DTYPE=bfloat16",
}
"""Inputs that a flag says in words of its own."""
_OURS = {
    *("engine", "gpu", "hbm", "weights", "weight_bytes_per_param", "reserve", "concurrency"),
    "host_memory",
}
"""Inputs that no launch command says."""
_NOT_FLAGS = {*_OURS, "model", "gpus", "tp", "dp", "pp", "ep", "draft_layers", "draft_tokens"}
"""Those, and what ``launch_command`` writes."""


def launch_command(
    engine: str, preset: str, layout: Layout, drafts: int = 0, args: str = ""
) -> str:
    """Return the command that starts one server, or one replica of a fleet.

    Raises:
        ConfigError: Another engine than vLLM, SGLang or TensorRT-LLM.
    """
    family, model = engine.partition(":")[0], _NAMES.get(preset, preset)
    if family == "sglang":
        ranks = layout.tp * layout.dp
        words = f"python -m sglang.launch_server --model-path {model} --tp-size {ranks}"
        words += f" --pp-size {layout.pp}" if layout.pp > 1 else ""
        if layout.dp > 1:
            words += f" --dp-size {layout.dp} --enable-dp-attention --ep-size {layout.ep}"
    elif family == "vllm":
        words = f"vllm serve {model} --tensor-parallel-size {layout.tp}"
        words += f" --pipeline-parallel-size {layout.pp}" if layout.pp > 1 else ""
        if layout.dp > 1:
            words += f" --data-parallel-size {layout.dp} --enable-expert-parallel"
    elif family == "trtllm" and layout.dp == 1:
        words = f"trtllm-serve {model} --tp_size {layout.tp}"
        words += f" --pp_size {layout.pp}" if layout.pp > 1 else ""
        words += f" --ep_size {layout.ep}" if layout.ep > 1 else ""
    else:
        raise ConfigError(f"--engine {engine}: choose sglang or vllm, or a version of theirs.")
    if drafts:
        words += _DRAFTS[family].format(drafts, drafts + 1)
    return f"{words} {args}".rstrip()


def launch_line(scenario: Scenario, context_tokens: int, requests: int) -> str:
    """Return the command that starts a deployment; empty where the engine has no such flags.

    ``budget --command`` reads it, and finds that it holds as many requests of the context.
    """
    inputs, family = scenario.inputs, scenario.engine.name.partition(":")[0]
    drafts = inputs.draft_tokens - (family == "sglang" and inputs.draft_tokens > 0)
    try:
        given = dict(_flags(family, inputs))
        words = [word for word in given.values() if not word.startswith("-")]
        args = " ".join(word for word in given.values() if word.startswith("-"))
        line = launch_command(family, inputs.model, scenario.layout, drafts, args)
        line = " ".join([*words, line])
        read = read_command(line).texts
        ours = {name: getattr(inputs, name) for name in _OURS}
        texts = {name.replace("-", "_"): READERS[name](text) for name, text in read.items()}
        (again,) = resolve(replace(Inputs(**texts), **ours))
    except (ConfigError, KeyError, StopIteration):
        return ""
    same = again.layout.gpus == scenario.layout.gpus
    return line if same and max_concurrency(again, context_tokens) == requests else ""


def _flags(family: str, inputs: Inputs) -> Iterator[tuple[str, str]]:
    """Flags, and variables before them, by the inputs that they say; ``KeyError`` for no flag."""
    offloads = family == "vllm" and inputs.host_tier == "native"
    if offloads and inputs.host_size:
        yield "host_tier", f"--kv-offloading-size {inputs.host_size / 2**30:g}"
    for field in fields(Inputs):
        name, value = field.name, getattr(inputs, field.name)
        if offloads and name in ("host_tier", "host_size"):
            continue
        if name in _NOT_FLAGS or value == field.default:
            continue
        written = _WRITTEN.get((family, name, value))
        yield name, written or _write(family, name.replace("_", "-"), value)


def _write(family: str, name: str, value: Any) -> str:
    for flag in FLAGS[family]:
        if flag.means is None:
            continue
        if flag.means.input == name:
            return _join(flag, _text(name, value))
        if (flag.switch or flag.is_variable) and _means(flag) == {name: str(value)}:
            return flag.name if flag.switch else _join(flag, "1")
    raise KeyError(name)


def _means(flag: Flag) -> Mapping[str, str]:
    assert flag.means is not None
    try:
        return flag.means.of("1" if flag.is_variable else "on")
    except ConfigError:
        return {}


def _text(name: str, value: Any) -> str:
    if name == "logits-limit":
        return str(value >> 20)
    return f"{float(value):g}" if isinstance(value, Fraction) else str(value)


def _join(flag: Flag, text: str) -> str:
    return f"{flag.name}={text}" if flag.is_variable else f"{flag.name} {shlex.quote(text)}"
