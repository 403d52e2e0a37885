"""A server's own settings, as settings of a replay: from its metrics and its launch command."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dsv4kv.budget.inputs import READERS
from dsv4kv.budget.launch import Reading
from dsv4kv.choices import listed
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.engines.logs import StartupLog, named_model
from dsv4kv.engines.names import FAMILIES, RULES, chosen_rule, find_rule
from dsv4kv.engines.rule import ENGINE_BLOCK_TOKENS as PAGE_TOKENS
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.record.server import Server
from dsv4kv.replay.memory import arch_of, plan_memory
from dsv4kv.replay.rules import Pool
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request

_DEFAULT_MODEL = "v4-flash"
_DIGITS = 15  # of a size; a recording may have any text
_BLOCK_TOKENS = "cache.block_tokens"
_COMMAND, _LOG = "the launch command", "the log of its start"
_METRICS = "the server's metrics"


class Known(NamedTuple):
    """A setting of the replay."""

    key: str
    value: str
    source: str


def settings_of(
    server: Server,  # what was recorded of it
    command: Reading | None,  # its launch command, if it is given
    log: StartupLog | None,  # the log of its start, if it is given
    rule: str | None,  # the rule, if it is given
    model: str | None,  # the model, if it is given
) -> Iterator[Known]:
    """What is known of a server, with defaults of its rule and model."""
    texts, metrics = command.texts if command else {}, server.settings
    (preset,) = _first(
        "model.preset",
        (model, "as given"),
        (texts.get("model"), _COMMAND),
        (named_model(log) if log else None, _LOG),
        (_DEFAULT_MODEL, "nothing names it"),
    )
    yield preset
    chosen = _rule(server, command, log, rule, load_model(preset.value))
    yield chosen
    if not find_rule(chosen.value).groups:  # what metrics call a block may be a part of one
        size = str(_whole(metrics, "block_size") or _whole(metrics, "page_size") or "")
        yield from _first(_BLOCK_TOKENS, (size, _METRICS), (texts.get("block-tokens"), _COMMAND))
    tokens = log.readings[0].whole("full_token") if log else None  # SGLang's; vLLM logs none
    size_by_log = (log.whole("block") if log else None) or PAGE_TOKENS
    yield from _first(
        "cache.num_blocks",
        (_blocks_by_metrics(server), _METRICS),
        (str(tokens // size_by_log) if tokens else None, _LOG),
        (texts.get("kv-blocks"), _COMMAND),
    )
    steps = str(log.whole("batched") or "") if log else None
    known = (texts.get("step-tokens"), _COMMAND), (steps, _LOG)
    yield from _first("scheduler.step_tokens", *known)
    if texts.get("draft-tokens", "0") != "0":
        yield Known("prefix.speculation", "mtp", _COMMAND)


def _first(key: str, *known: tuple[str | None, str]) -> list[Known]:
    return [Known(key, value, source) for value, source in known if value][:1]


def _rule(
    server: Server,
    command: Reading | None,
    log: StartupLog | None,
    asked: str | None,
    model: DSV4Config,
) -> Known:
    if asked:
        return Known("prefix.rule", asked, "as given")
    name = command.launch.family if command else log.family if log else server.family
    family = FAMILIES.get(name or "")
    if family is None or not family.rules:
        known = listed(rule for rule, row in RULES.items() if model.kind in row.default_for)
        raise ConfigError(
            "whose server it is is not known: record its --metrics, or give --rule, one of "
            f"{known}."
        )
    texts = command.texts if command else {}
    flags = {
        name: READERS[option](texts[option])
        for name in family.assumes
        if (option := name.replace("_", "-")) in texts
    }
    rule = chosen_rule(family, model.kind, flags)
    source = f"{family.name}'s default for {model.name}"
    if flags and RULES[rule].flags:
        source = f"{_COMMAND}: {RULES[rule].setting}"
    return Known("prefix.rule", rule, source)


def _blocks_by_metrics(server: Server) -> str | None:
    """The pool's capacity: in blocks less the null block (vLLM), or in tokens (SGLang)."""
    found = server.settings
    if blocks := _whole(found, "num_gpu_blocks"):
        return str(blocks - 1)
    if tokens := _whole(found, "num_tokens"):
        return str(tokens // (_whole(found, "page_size") or PAGE_TOKENS))
    return None


def _whole(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def open_pool(
    requests: Iterable[Request], known: Sequence[Known], given: Sequence[str]
) -> tuple[Pool, str]:
    """The server's cache with its requests, and its rule; ``given`` goes before ``known``."""
    asked = {setting.partition("=")[0] for setting in given}
    if "cache.memory_bytes" in asked:
        known = [each for each in known if each.key != "cache.num_blocks"]
    elif "cache.num_blocks" not in asked | {each.key for each in known}:
        raise ConfigError(
            "how many blocks the server's cache has is not known: record its --metrics, or give "
            "--set cache.num_blocks=N: vLLM's num_gpu_blocks, SGLang's max_total_num_tokens / 256."
        )
    settings = [f"{each.key}={each.value}" for each in known if each.key != _BLOCK_TOKENS]
    if "cache.memory_bytes" not in asked:
        settings.insert(0, "cache.memory_bytes=null")
    if "scheduler.max_requests" not in asked:  # slots are not counted, nor refused for a step
        settings.append("scheduler.max_requests=1")
    config = load_config(None, [*settings, *given], ReplayConfig).config
    memory = plan_memory(config)
    found = next((int(each.value) for each in known if each.key == _BLOCK_TOKENS), None)
    size = memory.block_tokens if found is None or _BLOCK_TOKENS in asked else found
    by_bytes = "cache.memory_bytes" in asked
    pool = Pool(
        collect_paths(requests),
        memory.num_blocks * (memory.block_tokens if by_bytes else size),
        size,
        memory.model,
        config.scheduler.step_tokens,
        memory.drafts,
        arch_of(config.cost),
    )
    return pool, config.prefix.rule
