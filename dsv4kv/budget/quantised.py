"""How a checkpoint stores its matrices: by its quantization_config, or by its name.

Source: readers of vLLM 0.33 (``model_executor/layers/quantization``), mlx-lm, and the published
files of NVIDIA's, canada-quant's and AppMana's checkpoints.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from dsv4kv.errors import ConfigError
from dsv4kv.units import counted

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Stored:
    """A type of matrices: its name, and bytes of a parameter with its share of the scales."""

    name: str
    each: Fraction


def _grouped(bits: int, group: int, beside: int, name: str = "") -> Stored:
    """Values of some bits; ``beside`` are bits of a group's scale and zero point."""
    scales = Fraction(beside, group) if group > 0 else 0
    return Stored(name or f"int{bits}", (bits + scales) / Fraction(8))


KINDS = {
    "fp4": _grouped(4, 32, 8, "fp4"),  # MXFP4
    "nvfp4": _grouped(4, 16, 8, "nvfp4"),
    "mxfp8": _grouped(8, 32, 8, "mxfp8"),
    "fp8": _grouped(8, -1, 0, "fp8"),
    "bf16": _grouped(16, -1, 0, "bf16"),
}
"""Types by name; scales of blocks and of channels are below 0.1 % and not counted."""
BF16, FP8 = KINDS["bf16"], KINDS["fp8"]


@dataclass(frozen=True)
class Storage:
    """Types of routed experts, of draft layers' experts, and of all other matrices.

    Only DeepSeek's own files have the first of the output's projections in less than bf16.
    Embedding, head, compressors, router and the indexer's weights are in bf16 in all of them.
    """

    experts: Stored
    dense: Stored
    drafts: Stored
    assumed: str = ""
    own: bool = False
    # layers whose experts are in bf16, and whether all else of them is, too
    spared: Mapping[int, bool] = field(default_factory=dict)

    @property
    def output(self) -> Stored:
        return self.dense if self.own else BF16

    @property
    def words(self) -> str:
        assumed = f" ({self.assumed})" if self.assumed else ""
        spared = f" but in {counted(len(self.spared), 'layer')}" if self.spared else ""
        return f"{self.experts.name} experts{spared}, {self.dense.name} elsewhere{assumed}"


def read_storage(config: Config, expert_dtype: str | None, name: str) -> Storage:
    """Read a ``quantization_config``; raises ``ConfigError`` for a method that is not known.

    ``expert_dtype`` is the key of DeepSeek's own files.
    """
    method = str(config.get("quant_method") or ("mlx" if "bits" in config else "")).lower()
    if not method:
        return _same(_kind(expert_dtype or "bf16", name), BF16)
    given = {**config, "expert_dtype": expert_dtype or config.get("expert_dtype")}
    reader = _READERS.get(method.replace("-", "_").removesuffix("_marlin"))
    with suppress(ArithmeticError, AttributeError, TypeError, ValueError):  # not as written
        if reader:
            return _sparing(reader(given, name), config)
    raise ConfigError(_unknown(f"{name}: quant_method {method[:40]!r}"))


_LAYER = re.compile(r"layers\.(?:(\d{1,4})|\[(\d)-(\d)\]|\(([\d|]{1,99})\))(?![\w-])")
_ROUTED = re.compile(r"(?<!shared_)experts(?:[.*]*$|\.\d+\.)")


def _sparing(found: Storage, config: Config) -> Storage:
    """The same with routed experts in bf16, of all layers or of some, that the file spares."""
    listed = (config.get(key) for key in ("modules_to_not_convert", "ignore", "exclude_modules"))
    spared: dict[int, bool] = {}
    for entry in next(filter(None, listed), ()):
        text = re.sub(r"^re:|[\\^$]", "", str(entry))
        layer = _LAYER.search(text)
        whole = layer is not None and not text[layer.end() :].strip(".*")
        if not (whole or _ROUTED.search(text)):
            continue
        if layer is None:
            return replace(found, experts=BF16, drafts=BF16)
        one, low, high, several = layer.groups()
        numbers = [one, *(several or "").split("|")]
        numbers += map(str, range(int(low or 0), int(high or -1) + 1))
        for number in filter(None, numbers):
            spared[int(number)] = whole or spared.get(int(number), False)
    return replace(found, spared=spared)


def _same(experts: Stored, dense: Stored, assumed: str = "") -> Storage:
    return Storage(experts, dense, experts, assumed)


_GIVE = (  # explain, budget and replay all come here
    "give the checkpoint's size, to budget with --weights, to replay with --set cost.weight_bytes"
)


def _unknown(what: str) -> str:
    return f"{what}: how large its weights are is not known: {_GIVE}."


def _kind(kind: str, name: str) -> Stored:
    if kind not in KINDS:
        raise ConfigError(_unknown(f"{name}: {kind[:40]!r} experts"))
    return KINDS[kind]


def _deepseek(config: Config, name: str) -> Storage:
    own = _kind(config["expert_dtype"] or "fp8", name)
    experts = KINDS["nvfp4"] if config.get("moe_quant_algo") == "NVFP4" else own
    drafts = own if _named("mtp", config.get("ignore")) else experts
    return Storage(experts, FP8, drafts, own=True)


def _modelopt(config: Config, name: str) -> Storage:
    algorithm = str(config.get("quant_algo") or config.get("quant_method", "")).lower()
    layers = config.get("quantized_layers") or {}
    of_experts = next((v.get("quant_algo", "") for k, v in layers.items() if "expert" in k), "")
    found = re.search(r"nvfp4|mxfp8|mxfp4|fp8|fp4", of_experts.lower() or algorithm)
    if found is None:
        raise ConfigError(_unknown(f"{name}: modelopt's {algorithm[:40]!r}"))
    kind = {"mxfp4": "fp4", "fp4": "nvfp4"}.get(found[0], found[0])
    spared = config.get("ignore") or config.get("exclude_modules")
    dense = BF16 if of_experts or _named("attn", spared) else KINDS[kind]
    return Storage(KINDS[kind], dense, BF16 if _named("mtp", spared) else KINDS[kind])


def _integers(config: Config, name: str) -> Storage:
    """AWQ, GPTQ and AutoRound: groups with a scale of 16 bits and a zero point."""
    bits = config.get("bits") or config.get("w_bit") or 4
    zero = bits if config.get("zero_point", True) else 0
    stored = _grouped(
        bits, config.get("group_size") or config.get("q_group_size") or 128, 16 + zero
    )
    spared = config.get("modules_to_not_convert") or [
        key for key in config.get("dynamic") or config.get("extra_config") or () if "attn" in key
    ]
    if spared and not _named("attn", spared):
        return _same(stored, stored)
    assumed = "" if spared else "only experts are taken to be quantised: the file does not say"
    return _same(stored, BF16, assumed)


def _compressed_tensors(config: Config, name: str) -> Storage:
    groups = [each for each in (config.get("config_groups") or {}).values() if each.get("weights")]

    def find(words: str, *, spared: bool = False) -> Stored:
        chosen = [each for each in groups if re.search(words, " ".join(each.get("targets", ())))]
        if not chosen and not spared:
            chosen = [each for each in groups if "Linear" in each.get("targets", ())]
        return _weights(chosen[0]["weights"], name) if chosen else BF16

    experts, dense = find("expert"), "attn|attention"
    drafts = BF16 if _named("mtp", config.get("ignore")) else experts
    return Storage(experts, find(dense, spared=_named(dense, config.get("ignore"))), drafts)


def _weights(weights: Config, name: str) -> Stored:
    """The ``weights`` of one of compressed-tensors' groups, or of Quark's."""
    bits, group = weights.get("num_bits", 8), weights.get("group_size") or -1
    if weights.get("type") == "float":
        kinds = {(4, 16): "nvfp4", (4, 32): "fp4", (8, 32): "mxfp8"}
        return KINDS[kinds.get((bits, group), "fp8" if bits == 8 else "fp4")]
    return _grouped(bits, group, 16 if weights.get("symmetric", True) else 16 + bits)


def _quark(config: Config, name: str) -> Storage:
    weights = (config.get("global_quant_config") or {}).get("weight") or {}
    weights = weights[0] if isinstance(weights, list) else weights
    dtype = str(weights.get("dtype", ""))
    found = re.match(r"(fp|int|uint)(\d)", dtype)
    if found is None:
        raise ConfigError(_unknown(f"{name}: Quark's {dtype[:40]!r}"))
    read = {"num_bits": int(found[2]), "type": "float" if found[1] == "fp" else "int"}
    stored = _weights({**read, "group_size": weights.get("group_size")}, name)
    spared = config.get("exclude")
    return Storage(
        stored,
        BF16 if _named("attn", spared) else stored,
        BF16 if _named("mtp", spared) else stored,
    )


def _ascend(config: Config, name: str) -> Storage:
    """Experts of W4A8 or W8A8 and the rest in 8 bits; which it is, is in another file."""
    wide = re.search(r"w8a8", name.lower()) and not re.search(r"w4a8", name.lower())
    experts = _grouped(8 if wide else 4, -1, 0)
    said = "" if re.search(r"w[48]a8", name.lower()) else "taken for W4A8: the file does not say"
    # the second scales of W4A8 and its biases, in fp32 for groups of 256
    stored = experts if wide else _grouped(4, 256, 64)
    return Storage(stored, BF16, _grouped(8, -1, 0), said)


def _mlx(config: Config, name: str) -> Storage:
    """MLX: one rule for all modules, and others for some by their paths."""

    def stored(rule: Config) -> Stored:
        mode, bits = rule.get("mode", config.get("mode", "affine")), rule.get("bits", 4)
        if mode in ("mxfp4", "nvfp4", "mxfp8"):
            return KINDS["fp4" if mode == "mxfp4" else mode]
        return _grouped(bits, rule.get("group_size") or 64, 32)  # scale and bias in bf16

    own = {key: value for key, value in config.items() if isinstance(value, dict)}
    layers = max(
        (int(n[1]) + 1 for key in own if (n := re.search(r"layers\.(\d+)\.", key))), default=1
    )

    def mean(words: str, each_layer: int) -> Stored:
        """Mean of ``each_layer`` modules of one size, as far as they have rules of their own."""
        found = [stored(rule) for key, rule in own.items() if re.search(words, key)]
        rest = max(0, each_layer * layers - len(found)) or (not found)
        every = [*found, *[stored(config)] * rest]
        sizes = sum((each.each for each in every), Fraction(0)) / len(every)
        return Stored(f"{float(sizes * 8):.3g}-bit", sizes)

    return _same(mean(r"switch_mlp|\.experts", 3), mean(r"attn", 5))


_READERS: dict[str, Callable[[Config, str], Storage]] = {
    **dict.fromkeys(("fp8", "deepseek_v4_fp8", "fbgemm_fp8"), _deepseek),
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4"), _modelopt),
    **dict.fromkeys(("awq", "gptq", "auto_round", "inc", "moe_wna16"), _integers),
    "compressed_tensors": _compressed_tensors,
    "mxfp4": lambda config, name: _same(KINDS["fp4"], BF16),
    "quark": _quark,
    "ascend": _ascend,
    "mlx": _mlx,
}


def _named(words: str, modules: Sequence[str] | None) -> bool:
    return bool(re.search(words, " ".join(map(str, modules or ()))))


_GROUPS = {"quant_method": "gptq", "bits": 4, "group_size": 128, "zero_point": False}
_BY_NAME: tuple[tuple[str, Config | None], ...] = (
    (r"gguf|mlx|\d-?bit|iq\d|q\d_|oq\d|exl\d|bnb", None),
    (r"nvfp4", {"quant_method": "fp8", "expert_dtype": "fp4", "moe_quant_algo": "NVFP4",
                "ignore": ["mtp"]}),
    (r"w4a8|w8a8", {"quant_method": "ascend"}),
    (r"awq", _GROUPS | {"quant_method": "awq", "zero_point": True}),
    (r"w4a16|int4|gptq|auto-?round", _GROUPS),
    (r"mxfp4|fp4", {"quant_method": "fp8", "expert_dtype": "fp4"}),
    (r"fp8|-base(-|$)", {"quant_method": "fp8", "expert_dtype": "fp8"}),
)  # fmt: skip


def storage_of_name(name: str) -> Storage | None:
    """What a checkpoint's name says of its types, if anything; raises ``ConfigError``."""
    for words, config in _BY_NAME:
        if re.search(words, name.lower()):
            if config is None:
                raise ConfigError(_unknown(name[:100]))
            found = read_storage(config, None, name)
            if config["quant_method"] in ("gptq", "awq"):
                dense = FP8 if "fp8" in name.lower() else BF16
                return _same(found.experts, dense, "groups of 128 by its name")
            return found
    return None


def experts_of_name(name: str, experts: int, count: Callable[[int], int]) -> int:
    """Routed experts of a layer that a pruned checkpoint's name says, else all ``experts``.

    ``count`` gives the parameters of a model with that number. Raises ``ConfigError`` for a name
    that says that it is pruned, and not how far.
    """
    text = name.lower()
    if kept := re.search(r"(?:^|[-_])k(\d{2,3})(?:[-_]|$)|(\d{2,3})(?:e|experts)(?:[-_]|$)", text):
        return int(kept[1] or kept[2])
    if size := re.search(r"(?:^|[-_])(\d{2,4})b(?:[-_]|$)", text):
        each = (count(experts) - count(1)) / (experts - 1)
        found = round(1 + (int(size[1]) * 1e9 - count(1)) / each)
        return experts if abs(found - experts) <= experts // 50 else min(max(1, found), experts)
    if re.search(r"reap|prun", text):
        raise ConfigError(
            f"{name[:100]}: its name says that experts were pruned, and not how many are left: "
            f"{_GIVE}, or the path of its config.json as --model."
        )
    return experts
