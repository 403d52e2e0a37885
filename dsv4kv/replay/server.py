"""A server as settings of a replay: as its engine starts it, as in ``budget``, or as recorded."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from dsv4kv.budget.answer import capacity_of, host_of
from dsv4kv.budget.inputs import READERS, read_inputs
from dsv4kv.budget.launch import Reading, read_command
from dsv4kv.budget.quantised import KINDS, storage_of_name
from dsv4kv.budget.scenario import Scenario, resolve
from dsv4kv.choices import listed
from dsv4kv.config.bench import Section
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig, TierSection
from dsv4kv.engines.flags import Texts
from dsv4kv.engines.logs import StartupLog, named_model
from dsv4kv.engines.names import (
    FAMILIES,
    RULES,
    chosen_rule,
    family_of,
    find_rule,
    replayed_engines,
)
from dsv4kv.engines.rule import ENGINE_BLOCK_TOKENS as PAGE_TOKENS
from dsv4kv.engines.rule import Family
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.record.server import Server
from dsv4kv.replay.clock.steps import find_layout, find_weights
from dsv4kv.replay.memory import arch_of, plan_memory
from dsv4kv.replay.rules import Pool
from dsv4kv.traces.paths import collect_paths
from dsv4kv.traces.request import Request

SectionT = TypeVar("SectionT", bound=Section)
_SIZES = ("tp", "dp", "pp", "ep")


def by_server(config: ReplayConfig) -> ReplayConfig:
    """The configuration with what its server says; its replicas have their pools together."""
    if not config.server.given:
        return config
    scenario = resolve(read_inputs(_texts(config)))[0]
    layout, settings = scenario.layout, scenario.settings
    if layout.gpus != config.cost.gpus:
        raise ConfigError(
            f"server runs on {layout.gpus} GPUs ({layout.label}), and cost.gpus is "
            f"{config.cost.gpus}: give --gpus {layout.gpus}."
        )
    (blocks, windows), drafts = _pools(scenario), scenario.inputs.draft_tokens
    held = scenario.engine.rule(scenario.deployment(0, scenario.context_tokens))
    cache = {
        "memory_bytes": None,
        "num_blocks": blocks * layout.dp,
        "num_checkpoints": None if windows is None else windows * layout.dp,
        "block_tokens": config.cache.block_tokens or held.block_tokens,
    }
    scheduler: dict[str, Any] = {"step_tokens": settings.step_tokens * layout.dp}
    if settings.request_limit:
        scheduler["max_requests"] = settings.request_limit * layout.dp
    speculative = config.scheduler.speculative
    if drafts and not speculative.draft_tokens:
        verified = scenario.engine.family.launch.counts_verified
        scheduler["speculative"] = _changed(speculative, draft_tokens=drafts - verified)
    cost: dict[str, Any] = {name: getattr(layout, name) for name in _SIZES}
    inputs = scenario.inputs
    if inputs.all_to_all and not config.cost.changed("all_to_all"):
        cost["all_to_all"] = inputs.all_to_all.startswith("deepep")
    if inputs.delay_prompts and not config.scheduler.changed("delay_prompts"):
        scheduler["delay_prompts"] = True
    stored = storage_of_name(inputs.checkpoint or "") if inputs.weights is None else None
    if stored and stored.experts.name in KINDS and not config.cost.changed("experts"):
        cost["experts"] = stored.experts.name
    rule = config.prefix.rule
    if rule == "ideal":
        kept, slots = scenario.inputs.retention, settings.window_slots or "kept"
        flags = {"retention": kept, "window_slots": slots}
        rule = chosen_rule(scenario.engine.family, scenario.config.kind, flags)
    return _changed(
        config,
        server=_changed(config.server, engine=scenario.engine.name),
        cost=_changed(config.cost, **cost),
        cache=_changed(config.cache, **cache),
        prefix=_changed(config.prefix, rule=rule),
        scheduler=_changed(config.scheduler, **scheduler),
        tiers=_changed(config.tiers, host=_host(config.tiers.host, scenario)),
    )


def _host(asked: TierSection, scenario: Scenario) -> TierSection:
    inputs = scenario.inputs
    if asked.exists or inputs.host_tier is None:
        return asked
    context = scenario.context_tokens
    capacity, deployment = capacity_of(scenario, 0, context, 1), scenario.deployment(0, context)
    tier = host_of(scenario, deployment, capacity)
    if tier is None or capacity is None or tier.holder == "server":  # its blocks are its own
        return asked
    if tier.refusal:
        raise DoesNotFit(tier.refusal)
    blocks, _ = scenario.engine.blocks(deployment, capacity.units)
    ratio = inputs.host_ratio or Fraction(tier.pools[0].pages, blocks)
    return _changed(asked, ratio=float(ratio))


def _changed(section: SectionT, **values: Any) -> SectionT:
    return section.model_copy(update=values)


def _texts(config: ReplayConfig) -> Texts:
    """Options of ``dsv4kv budget`` that describe the server."""
    server, drafts = config.server, config.scheduler.speculative.draft_tokens
    engine = server.engine or ""
    model = load_model(config.model.preset)
    layout = find_layout(config.cost, model)
    texts = {name: str(getattr(layout, name)) for name in _SIZES}
    if server.command is not None:
        texts = _read(config, server.command, family_of(engine))
    texts = {"gpu": config.cost.gpu or "", **texts, "model": config.model.preset}
    if engine:
        texts["engine"] = engine
    if drafts and "draft-tokens" not in texts:
        family = family_of(texts["engine"])
        texts["draft-tokens"] = str(
            drafts + (family is not None and family.launch.counts_verified)
        )
        texts.setdefault("draft-layers", str(config.model.draft_layers or 1))
    if config.cost.experts in ("fp4", "nvfp4", "fp8") and not config.cost.weight_bytes:
        texts["checkpoint"] = f"{config.model.preset}-{config.cost.experts}"
    elif config.cost.changed("experts", "weight_bytes"):
        texts["weights"] = str(find_weights(config, model)[1].total_bytes)
    if config.cache.max_context_tokens:
        texts["context"] = str(config.cache.max_context_tokens)
    return texts


def _read(config: ReplayConfig, command: str, family: Family | None) -> Texts:
    """Settings of a launch command; flags alone are read as ``family``'s."""
    if command.lstrip().startswith("-"):
        if family is None or not family.launch.program:
            raise ConfigError(
                "server.command begins with a flag, and server.engine does not say whose: give "
                f"{' or '.join(replayed_engines())} there, or the whole command."
            )
        command = f"{family.launch.program} {command}"
    preset = config.model.preset
    found = read_command(command, model=preset, whole=True).texts
    served = found.get("model", preset)
    if served != preset:
        raise ConfigError(
            f"server.command serves {served}, and model.preset is {preset}: give --model {served}."
        )
    return found


def _pools(scenario: Scenario) -> tuple[int, int | None]:
    context, engine, found = scenario.context_tokens, scenario.engine, []
    for stage in range(scenario.layout.pp):
        capacity = capacity_of(scenario, stage, context, 1)
        lines = capacity.log_lines if capacity else ()
        if capacity is None or not capacity.units or (lines and capacity.printed_tokens is None):
            raise DoesNotFit(
                f"{engine.name} does not start on {scenario.layout.label} of {scenario.gpu.name}: "
                f"{lines[-1] if lines else 'its weights leave no memory for a cache'}. Ask dsv4kv "
                "budget for a layout that does."
            )
        found.append(engine.blocks(scenario.deployment(stage, context), capacity.units))
    return min(found)


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
