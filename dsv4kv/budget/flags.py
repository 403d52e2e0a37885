"""The flags of engines in a command: separated from our options, read, and merged to inputs."""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from dsv4kv.engines import flags as fl
from dsv4kv.engines.names import FAMILIES
from dsv4kv.errors import ConfigError, mask_secrets

Pairs = list[tuple[str, str]]
"""Flags with their values, empty for a switch."""


def take_flags(arguments: Iterable[str], ours: Container[str]) -> tuple[Pairs, list[str]]:
    """Separate the flags of engines from our options and everything else."""
    taken: Pairs = []
    rest: list[str] = []
    following = iter(arguments)
    for argument in following:
        spelling, equals, value = argument.partition("=")
        found = (fl.find_flag(family, spelling) for family in FAMILIES)
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
        """What it does to sizes; empty where that is not known."""
        return self.flag.effect if self.flag else ""

    @property
    def is_secret(self) -> bool:
        """Whether its value has a password, which no line repeats."""
        return mask_secrets(self.value) != self.value


def read_flag(family: str, spelling: str, value: str) -> GivenFlag:
    """Read one flag; raises ``ConfigError`` for a value that is not of its kind."""
    flag = fl.find_flag(family, spelling)
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
    _settle(texts)
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


def _settle(texts: fl.Texts) -> None:
    for name in (fl.KEYS, fl.VALUES):
        texts.pop(name, None)
    unified, batch = texts.get("unified-slots"), texts.pop(fl.BATCH, None)
    if (total := texts.pop(fl.SLOTTED, None)) and int(total):  # 0 is the model's own
        slots = 1 if unified or "request-limit" not in texts else int(texts["request-limit"])
        texts["context"] = str(max(1, int(total) // max(slots, 1)))
    if batch:
        texts["step-tokens"] = str(min(int(batch), int(texts.get("step-tokens", 512))))
    if own := texts.pop(fl.OWN_DRAFTS, None):
        texts.setdefault("draft-tokens", own)
    simple, tier = texts.pop(fl.SIMPLE, None), texts.pop(fl.OWN_TIER, None)
    if tier and "host-size" in texts:
        texts.setdefault("host-tier", "simple" if simple and tier == "native" else tier)
        if tier == "lmcache":  # its server has a size of its own
            del texts["host-size"]


def wrong_engine(family: str, spelling: str) -> ConfigError:
    """The sentence about a flag of another engine: whose it is, and what says the same."""
    owner = next(name for name in FAMILIES if fl.find_flag(name, spelling))
    flag = fl.find_flag(owner, spelling)
    name = flag.means.input if flag and flag.means else ""
    if fl.flags_of(family):
        same = fl.flag_for(family, name) if name else ""
        instead = f"{family} calls it {same}" if same else f"{family} has no such flag"
    else:
        instead = f"add --engine {owner}" + (f", or give --{name}" if name else "")
    return ConfigError(f"{spelling} is a flag of {owner}: {instead}.")
