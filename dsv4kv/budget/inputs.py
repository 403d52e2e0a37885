"""Everything a sizing question can give, and how each of it is written."""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, TypeVar, get_type_hints

from dsv4kv.choices import Choice, choose
from dsv4kv.engines import flags as fl
from dsv4kv.engines.names import FAMILIES, HOST_TIERS, find_flag, flag_for
from dsv4kv.errors import ConfigError, mask_secrets
from dsv4kv.units import parse_bytes, parse_count

SIZED_STATES = {
    "fp32": Choice("float32"),
    "bf16": Choice("bfloat16"),
    "online": Choice("HCA as a running softmax in float32"),
}
"""Compressor states that ``budget`` sizes."""

DEFAULT_GPU = "h200"


def _text(text: str) -> str:
    if not text:
        raise ConfigError("the value is missing.")
    return text


_Number = TypeVar("_Number", int, Fraction)


def _within(
    parse: Callable[[str], _Number], refused: str, least: int = 0, most: int | None = None
) -> Callable[[str], _Number]:
    def read(text: str) -> _Number:
        if (found := parse(text)) < least or (most is not None and found > most):
            raise ConfigError(f"{text} is {refused}.")
        return found

    return read


_few = _within(parse_count, "too many: give at most 1,024", most=1024)
_positive = _within(parse_count, "too few: give at least 1", 1)
_size = _within(parse_bytes, "too little: give at least 1 B", 1)
_EXPONENT = re.compile(r"[eE][+-]?\d{3,}")  # beyond every memory, and beyond patience
_LONGEST_NUMBER = 100  # characters: a float holds any of them


def _number(text: str) -> Fraction:
    try:
        if _EXPONENT.search(text) or len(text) > _LONGEST_NUMBER:
            raise ValueError
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"{text!r} is not a number: write 0.9 or 1/2.") from None
    if value <= 0:
        raise ConfigError(f"{text} is too little: give a number above 0.")
    return value


_fraction = _within(_number, "no share of a GPU: give a number above 0, at most 1", most=1)


def _state(text: str) -> str:
    choose(SIZED_STATES, text, "a state format")
    return text


def _retention(text: str) -> int | None:
    return None if text == "dense" else parse_count(text)


def _layers(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) for size in sizes):
        raise ConfigError(f"{text!r} is no list of layers: write 11,11,11,10.")
    return tuple(map(int, sizes))


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ConfigError(f"{text!r} is none of {', '.join(names)}: choose one.")
        return text

    return read


Text = Annotated[str | None, _text]
Count = Annotated[int | None, _positive]
Size = Annotated[int | None, _size]
Share = Annotated[Fraction | None, _fraction]
Ratio = Annotated[Fraction | None, _number]
Few = Annotated[int, _few]
On = Annotated[str | None, _one_of("on")]


@dataclass(frozen=True)
class Inputs:
    """One sizing question: a field for every option of ``budget``, with how its text is read.

    None asks for the engine's own value, the most that fits, or the fewest GPUs. Fields that are
    no options come from an engine's flags.
    """

    model: Annotated[str, _text] = "v4-flash"
    gpu: Text = None
    hbm: Size = None
    gpus: Count = None
    tp: Count = None
    dp: Count = None
    pp: Count = None
    ep: Count = None
    expert_parallel: On = None  # a rank holds whole experts, where EP is not given: as many bytes
    context: Count = None
    concurrency: Count = None
    checkpoint: Text = None  # name of the checkpoint, which may say how its matrices are stored
    weights: Size = None
    memory_fraction: Share = None
    reserve: Annotated[int | None, parse_bytes] = None
    kv_memory: Size = None
    kv_blocks: Count = None
    block_tokens: Count = None
    main_format: Text = None
    window_format: Text = None
    indexer_format: Text = None
    state: Annotated[str, _state] = "fp32"
    draft_layers: Few = 0
    draft_tokens: Few = 0
    step_tokens: Count = None  # of one replica, in SGLang of all; so is the request limit
    overlap: Count = None
    in_flight_tokens: Count = None
    request_limit: Count = None
    logits_limit: Size = None
    graphs: Annotated[int | None, parse_count] = None  # of the largest that is counted first
    window_ratio: Share = None
    window_slots: Annotated[str | None, _one_of("freed", "kept", "own")] = None
    attention_backend: Text = None
    cache_dtype: Annotated[str, _text] = "auto"
    # how tokens reach the experts of other ranks, which times depend on, no size;
    # ``delay_prompts``: prompts wait until every rank has one
    all_to_all: Text = None
    delay_prompts: On = None
    role: Annotated[str | None, _one_of("prefill", "decode")] = None
    dcp: Annotated[int, _positive] = 1  # ranks that a request's context is spread over in decode
    prefill_cp: Annotated[int, _positive] = 1
    stage_layers: Annotated[tuple[int, ...] | None, _layers] = None  # of every stage
    hisparse: On = None
    hisparse_ratio: Annotated[int, _positive] = 2
    unified_memory: On = None
    unified_kv: On = None
    unified_slots: On = None
    extra_slots: Annotated[int | None, parse_count] = None
    prefix_cache: Annotated[str, _one_of("on", "off")] = "on"
    host_tier: Annotated[str | None, _one_of(*HOST_TIERS)] = None
    host_ratio: Ratio = None
    host_size: Size = None
    host_memory: Size = None
    host_layout: Annotated[str, _text] = "page_first"
    host_storage: Text = None
    bounded_replay: Annotated[str | None, _one_of("on", "off")] = None  # see ``Deployment``
    dp_attention: Annotated[str, _one_of("on", "off")] = "on"  # in one server (SGLang)
    host_chunk: Count = None
    retention: Annotated[int | None, _retention] = 0
    engine: Annotated[str, _text] = "dsv4kv"

    @property
    def cache_given(self) -> bool:
        return bool(self.kv_memory or self.kv_blocks)


READERS: dict[str, Callable[[str], Any]] = {
    name.replace("_", "-"): hint.__metadata__[0]
    for name, hint in get_type_hints(Inputs, include_extras=True).items()
}
"""How to read every input, by option name."""


def read_inputs(texts: Mapping[str, str]) -> Inputs:
    """Read inputs by option name (``in-flight-tokens``: ``8K``); raises ``ConfigError``."""
    from dsv4kv.model.presets import preset_of  # pydantic, which no help needs

    values = {}
    if (named := texts.get("model", "").strip()) != (preset := preset_of(named)):
        texts = {"checkpoint": named} | dict(texts) | {"model": preset}
    for name, text in texts.items():
        try:
            values[name.replace("-", "_")] = READERS[name](text.strip())
        except ConfigError as error:
            raise ConfigError(f"--{name}: {error}") from None
    return Inputs(**values)


# ---- flags of engines: separated from our options, read, and merged to inputs

Pairs = list[tuple[str, str]]
"""Flags with their values, empty for a switch."""


def take_flags(arguments: Iterable[str], ours: Container[str]) -> tuple[Pairs, list[str]]:
    """Separate the flags of engines from our options and everything else."""
    taken: Pairs = []
    rest: list[str] = []
    following = iter(arguments)
    for argument in following:
        spelling, equals, value = argument.partition("=")
        found = (find_flag(family, spelling) for family in FAMILIES)
        flag = None if spelling in ours else next(filter(None, found), None)
        if flag is None or not spelling.startswith("-"):
            rest.append(argument)
            continue
        if not equals and not flag.switch:
            value = next(following, "")
            if not value:
                raise ConfigError(f"{spelling}: the value is missing.")
        taken.append((spelling, value))
    return taken, rest


@dataclass(frozen=True)
class GivenFlag:
    """One flag that was given, what is known of it, and the inputs that it means."""

    spelling: str
    value: str
    flag: fl.Flag | None
    texts: fl.Texts

    @property
    def effect(self) -> str:
        return self.flag.effect if self.flag else ""

    @property
    def is_secret(self) -> bool:
        """Whether its value has a password, which no line repeats."""
        return mask_secrets(self.value) != self.value


def read_flag(family: str, spelling: str, value: str) -> GivenFlag:
    """Read one flag; raises ``ConfigError`` for a value that is not of its kind."""
    flag = find_flag(family, spelling)
    if flag is None or flag.means is None:
        return GivenFlag(spelling, value, flag, {})
    try:
        return GivenFlag(spelling, value, flag, flag.means.of("on" if flag.switch else value))
    except ConfigError as error:
        raise ConfigError(f"{spelling}: {error}") from None


def merge(family: str, given: Iterable[GivenFlag]) -> fl.Texts:
    """Inputs from flags; of equal flags the last counts.

    Tensor parallel ranks may include all replicas (SGLang's, with DP attention).
    """
    texts: fl.Texts = {}
    for each in given:
        texts |= each.texts
    _settle(texts, FAMILIES[family].batch_tokens)
    if tokens := texts.pop(fl.TOKENS, None):
        block = FAMILIES[family].block_tokens
        texts["kv-blocks"] = str(max(1, int(tokens) // int(texts.get("block-tokens", block))))
    inside = texts.pop("dp-attention", None)
    if inside == "all":  # every rank is a replica
        return texts | {"tp": "1", "dp": texts.get("tp", "1")}
    if not FAMILIES[family].launch.tp_spans_replicas:
        return texts
    if not inside and texts.get("dp", "1") != "1":
        texts |= {"dp-attention": "off"} | {"ep": texts.get("ep", texts.get("tp", "1"))}
    if inside and "dp" in texts:
        ranks, replicas = int(texts.get("tp", 1)), int(texts["dp"])
        if replicas < 1 or ranks % replicas:
            raise ConfigError(
                f"--dp-size {replicas} does not divide --tp-size {ranks}: with "
                "--enable-dp-attention replicas are ranks of one server."
            )
        texts["tp"] = str(ranks // replicas)
    return texts


def _settle(texts: fl.Texts, usual_batch: int) -> None:
    for name in (fl.KEYS, fl.VALUES):
        texts.pop(name, None)
    if usual_batch and "step-tokens" in texts:
        texts.setdefault(fl.BATCH, str(usual_batch))
    unified, batch = texts.get("unified-slots"), texts.pop(fl.BATCH, None)
    if (total := texts.pop(fl.SLOTTED, None)) and int(total):  # 0 is the model's own
        slots = 1 if unified or "request-limit" not in texts else int(texts["request-limit"])
        texts["context"] = str(max(1, int(total) // max(slots, 1)))
    if batch:
        step = int(texts.get("step-tokens", 512)) or int(batch)
        texts["step-tokens"] = str(min(int(batch), step))
    if own := texts.pop(fl.OWN_DRAFTS, None):
        texts.setdefault("draft-tokens", own)
    simple, tier = texts.pop(fl.SIMPLE, None), texts.pop(fl.OWN_TIER, None)
    if tier and "host-size" in texts:
        texts.setdefault("host-tier", "simple" if simple and tier == "native" else tier)
        if tier == "lmcache":  # its server has a size of its own
            del texts["host-size"]


def wrong_engine(family: str, spelling: str) -> ConfigError:
    """The sentence about a flag of another engine: whose it is, and what says the same."""
    owner = next(name for name in FAMILIES if find_flag(name, spelling))
    flag = find_flag(owner, spelling)
    name = flag.means.input if flag and flag.means else ""
    if FAMILIES[family].flags:
        same = flag_for(family, name) if name else ""
        instead = f"{family} calls it {same}" if same else f"{family} has no such flag"
    else:
        instead = f"add --engine {owner}" + (f", or give --{name}" if name else "")
    return ConfigError(f"{spelling} is a flag of {owner}: {instead}.")
