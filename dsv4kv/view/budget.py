"""An answer of ``dsv4kv budget``: what fits and what changes it, with --verbose every part."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsv4kv.engines.contract import Capacity
from dsv4kv.engines.host import HostTier
from dsv4kv.sizing.advice import Option
from dsv4kv.sizing.answer import Answer, assumptions, count_requests, limit_sentence, peak_of
from dsv4kv.sizing.fit import LayoutLine, RankUse, within_limit
from dsv4kv.sizing.lookup import kv_heads
from dsv4kv.sizing.scenario import Scenario
from dsv4kv.units import format_bytes, format_count
from dsv4kv.view.table import (
    ABSENT,
    Facts,
    Finding,
    Part,
    Stack,
    StackPart,
    Table,
    Text,
    names,
    numbers,
    prose,
)

if TYPE_CHECKING:
    from dsv4kv.sizing.launch import FlagCost, Reading
    from dsv4kv.sizing.reuse import Reuse

# part of RankUse: character, words
_PARTS = {
    "weights": ("█", "weights"),
    "reserve": ("▓", "reserve"),
    "transient": ("▞", "indexer logits"),
    "fixed": ("▒", "fixed"),
    "tokens": ("░", "tokens"),
    "lost": ("╳", "lost to rounding"),
    "free": ("·", "free"),
    "headroom": ("▚", "logits in it"),
    "spare": ("-", "headroom"),
}


def memory_bar(use: RankUse) -> Stack:
    """One GPU's memory and its parts."""
    sizes = _sizes(use)
    whole = max(use.memory, sum(sizes.values()))
    over = f"{format_bytes(whole)} of " if whole > use.memory else ""
    parts = [
        StackPart(*_PARTS[name], format_bytes(size), size / whole) for name, size in sizes.items()
    ]
    return Stack("one GPU", parts, over + format_bytes(use.memory))


def _sizes(use: RankUse) -> dict[str, int]:
    return {
        "weights": use.weights,
        "reserve": use.reserve,
        "transient": use.transient,
        "fixed": use.fixed + use.shared + use.in_flight,
        "tokens": use.tokens,
        "lost": use.lost,
        "free": max(0, use.free),
        "headroom": use.headroom,
        "spare": max(0, use.memory - use.budget - use.headroom),
    }


_BRIEF_OPTIONS = 3


def view_answer(
    found: Answer,
    options: Sequence[Option],
    layouts: Sequence[LayoutLine],
    curve: Sequence[tuple[int, int]],
    reuse: "Reuse | None",
    *,
    given: Mapping[str, str],
    verbose: bool,
    command: Iterable[Part] = (),
) -> Iterator[Part]:
    """What the answer follows from, then the answer; tables and every option with ``verbose``."""
    scenario = found.scenario
    yield Text(
        f"{scenario.config.name} on {_gpus(scenario)}, cache sized as {scenario.engine.name}",
        "strong",
    )
    yield from _chosen(found)
    yield from _copies_sentences(found, layouts)
    yield ""
    yield memory_bar(found.use)
    yield ""
    yield _facts(found, curve)
    inputs = scenario.inputs
    if inputs.host_tier is None and (inputs.host_ratio or inputs.host_size):
        yield Finding("warning", "memory of a host without what keeps it: add --host-tier")
    if found.host:
        yield ""
        yield from host_parts(found.host)
    if verbose or "engine" in given:
        yield ""
        yield from _engine_lines(found)
        yield ""
        yield from peak_parts(found)
    if verbose:
        yield from _tables(found, layouts, reuse)
    if options and not (found.host and found.host.refusal):
        yield ""
        yield options_table(options[: None if verbose else _BRIEF_OPTIONS], found)
    yield from command
    yield ""
    yield from _assumed(scenario, given)
    yield ""
    yield _answer(found, options)


def _tables(found: Answer, layouts: Sequence[LayoutLine], reuse: "Reuse | None") -> Iterator[Part]:
    yield from ("", pools_table(found), "", memory_table(found))
    yield from ("", assumed_table(found.scenario))
    if len(layouts) > 1:
        yield from ("", layouts_table(layouts, found.context))
    if reuse:
        yield from ("", prefix_table(reuse, found.context))


def _gpus(scenario: Scenario) -> str:
    layout = scenario.layout
    return f"{layout.gpus:,} × {scenario.gpu.name} ({layout.label})"


def _sentence(found: Answer) -> Finding:
    """The answer in one sentence."""
    asked = found.scenario.inputs
    requests = count_requests(found.concurrency)
    load = f"{requests} of {found.context:,} tokens"
    if not within_limit(found.scenario, found.concurrency):
        return Finding("bad", f"{load} do not run at once: {limit_sentence(found.scenario)}.")
    if found.host and found.host.refusal:
        return Finding("bad", found.host.refusal)
    if found.refused and found.use.free >= 0:
        name = found.scenario.engine.name
        return Finding("bad", f"{load}: {name} refuses to start, though memory would hold them.")
    if not found.fits:
        missing = format_bytes(-found.use.free)
        verb = "do" if found.concurrency > 1 else "does"
        return Finding("bad", f"{load} {verb} not fit: every GPU lacks {missing}.")
    if asked.concurrency and (asked.context or asked.gpus is None):
        room = format_bytes(found.use.free)
        sentence = f"{load} fit, {room} of every GPU left; at most {found.max_concurrency:,} fit."
    elif asked.concurrency:
        sentence = f"{requests} of up to {found.max_context:,} tokens fit at once."
    else:
        sentence = f"{load} fit at once: {found.max_tokens:,} tokens of context altogether."
    return Finding("good", sentence)


def _answer(found: Answer, options: Sequence[Option]) -> Finding:
    """The answer where a terminal ends, and the option that changes it most."""
    found_so = _sentence(found)
    best = options[0] if options else None
    refused = found.host and found.host.refusal
    if best is None or refused or (not found.fits and not best.fits):
        return found_so
    gain = count_requests(best.concurrency) if found.fits else "it fits"
    return replace(found_so, sentence=f"{found_so.sentence} With {best.change}: {gain}.")


def _chosen(found: Answer) -> Iterator[str]:
    """That the number of GPUs is the tool's choice, or that of requests the engine's."""
    if found.fits and not within_limit(found.scenario, found.max_concurrency + 1):
        yield f"No more run at once, wherever memory is left: {limit_sentence(found.scenario)}."
    layout, asked = found.scenario.layout, found.scenario.inputs
    if found.fits and asked.gpus is None and not (asked.tp and asked.dp):
        load = f"{count_requests(asked.concurrency or 1)} of {found.context:,} tokens"
        yield f"{layout.gpus:,} of these GPUs are the fewest that hold {load}."


def _copies_sentences(found: Answer, layouts: Sequence[LayoutLine]) -> Iterator[str]:
    """What tensor parallelism costs: the copies of the single KV head."""
    best = max(layouts, key=lambda line: line.concurrency)
    heads = "one KV head" if kv_heads(found.scenario.config) == 1 else "no more KV heads"
    better = f"; as {best.layout.label} the same GPUs hold {best.concurrency:,}"
    if found.kv_copies > 1:
        yield (
            f"TP{found.scenario.layout.tp} keeps {found.kv_copies} copies of every request's KV "
            f"({heads}){better if best.concurrency > found.max_concurrency else ''}."
        )


def _facts(found: Answer, curve: Sequence[tuple[int, int]]) -> Facts:
    """What one request costs, and how many fit at other contexts."""
    fixed = sum(cost.fixed_bytes for cost in found.costs)
    marginal = float(sum(cost.marginal_bytes for cost in found.costs))
    padding = float(sum(cost.padding_bytes for cost in found.costs))
    stage = f" (stage {found.use.stage})" if found.scenario.layout.pp > 1 else ""
    rows = {
        f"one request{stage}": (
            f"{format_bytes(fixed)} fixed + {marginal:,.2f} B per token "
            f"(+ {padding:,.2f} B lost to padding)"
        )
    }
    if found.use.in_flight:
        rows["tokens in flight"] = f"{format_bytes(found.use.in_flight)} reserved for one chunk"
    if found.sent_bytes:
        rows["sent to decode"] = (
            f"{format_bytes(found.sent_bytes)} of a prompt of {found.context:,} tokens, by a rank"
        )
    rows["requests at once"] = "; ".join(f"{format_count(n)}: {count:,}" for n, count in curve)
    return Facts(rows)


def _engine_lines(found: Answer) -> Iterator[Part]:
    """What the engine will log for the memory left to it, and what its count means."""
    engine, capacity = found.scenario.engine, found.capacity
    seen = "" if engine.seen_in_logs else " (derived from its source, not seen in a log)"
    if capacity and not engine.own:
        smallest = " in every stage, as in the smallest," if found.scenario.layout.pp > 1 else ""
        yield (
            f"{capacity.units:,} {engine.unit}s{smallest} of {float(capacity.unit_bytes):,.10g} "
            f"B; a request of {found.context:,} tokens is counted with "
            f"{float(capacity.units_per_request):,.0f}."
        )
    if found.log_lines:
        yield Text(f"{engine.name} prints{seen}:", "strong")
        yield from (f"  {line}" for line in found.log_lines)
    elif capacity:
        yield Text(f"{engine.name} prints no such line{seen}.", "strong")
    if capacity:
        yield from filter(None, [capacity.note])
        yield from _differences(found, capacity)


def _differences(found: Answer, capacity: Capacity) -> Iterator[str]:
    """Why the lines say otherwise than the answer above, or than each other."""
    counted = float(capacity.concurrency) * found.scenario.layout.dp
    requests = f"{counted:,.2f} of {found.context:,} tokens on all replicas"
    if capacity.log_lines and capacity.printed_tokens is None:
        if capacity.concurrency >= 1:
            yield (
                "This check at its start counts blocks of other bytes than those of its pool: by "
                f"these, as it counts once it has started, the memory holds {requests}."
            )
        return
    if found.use.in_flight and counted < found.max_concurrency:
        yield (
            f"It counts {format_bytes(found.use.in_flight)} for tokens in flight with every "
            f"request, so {requests}; above, one chunk is in flight at a time."
        )
    profiled = found.scenario.engine.logits_room == "profiled"
    if not found.fits and counted >= found.concurrency and found.use.transient and not profiled:
        yield (
            "It sets nothing aside for the indexer's logits "
            f"({format_bytes(found.use.transient)}): it starts, and lacks them in a step."
        )


def _assumed(scenario: Scenario, given: Mapping[str, str]) -> Iterator[Text]:
    """What was not given and which value it has; units, said once."""
    inputs = scenario.inputs
    ours = {
        "model": inputs.model,
        "gpu": "" if inputs.hbm else scenario.gpu.name,
        "state": inputs.state,
    }
    assumed = [f"--{name} {value}" for name, value in ours.items() if value and name not in given]
    lines = assumptions(scenario)
    assumed += [f"{line.option} {line.shown}" for line in lines if line.value is not None]
    yield Text(f"assumed: {', '.join(assumed)}", "dim")
    config = scenario.config
    if config.kind != "v4" or inputs.attention_backend:  # one thing here and another there
        yield from (Text(f"formats: {x.reason}", "dim") for x in lines if x.input == "main_format")
    if config.kind == "flat" and config.index_sources is not None:
        keyed = f"{len(config.index_sources)} of {config.num_layers} layers"
        yield Text(f"IndexCache: {keyed} keep indexer keys, the others take their choice", "dim")
    yield Text(f"weights: {scenario.weights.source}", "dim")
    yield Text(
        f"memory: {format_bytes(scenario.gpu.memory_bytes)} of {scenario.gpu.title}, "
        f"{scenario.gpu.memory_source}; binary, 1 GiB = 2^30 B, 1M = 1,048,576",
        "dim",
    )


def assumed_table(scenario: Scenario) -> Table:
    """What the engine takes where nothing is given, and why."""
    return Table(
        "Assumed",
        [*names("option"), *numbers("value"), *prose("because")],
        [(line.option, line.shown, line.reason) for line in assumptions(scenario)],
        note=f"not given: {scenario.engine.name} takes",
    )


_LONGEST_VALUE = 34  # deepseek-ai/DeepSeek-V4.1-Flash and a little


def view_command(reading: "Reading", costs: "Iterable[FlagCost]") -> Iterator[Part]:
    """What every flag and variable of a launch command does to sizes."""
    by_flag = {cost.flag.spelling: cost for cost in costs}
    yield ""
    yield Table(
        "Command",
        [*names("flag", "value"), *numbers("takes", "requests"), *prose("decides")],
        [
            (
                flag.spelling,
                _shortened(flag.value or "on"),
                *_cost_cells(by_flag.get(flag.spelling)),
                flag.effect,
            )
            for flag in reading.counted
        ],
        note=f"{reading.launch.title}; on one GPU, against the command without the flag",
        keys=2,
    )
    for flag in reading.uncounted:
        value = f" {flag.value}" if flag.value else ""
        yield Finding("warning", f"not counted: {flag.spelling}{value}: {flag.effect}")
    if reading.unknown:
        listed = ", ".join(flag.spelling for flag in reading.unknown)
        yield Text(f"not known to change sizes, so not counted: {listed}", "dim")


def _shortened(value: str) -> str:
    flat = " ".join(value.split())
    return flat if len(flat) <= _LONGEST_VALUE else f"{flat[: _LONGEST_VALUE - 1]}…"


def _cost_cells(cost: "FlagCost | None") -> list[str]:
    if cost is None or not (cost.taken_bytes or cost.requests):
        return [ABSENT, ABSENT]
    return [format_bytes(cost.taken_bytes), f"{cost.requests:+,}"]


_MEMORY = {
    "weights": "weights",
    "reserve": "reserve for activations, graphs, communication",
    "transient": "transient: indexer logits of one chunk",
    "shared": "cache held without any request",
    "fixed": "cache: fixed for every request",
    "in_flight": "cache: reserve for the tokens in flight",
    "tokens": "cache: tokens of context",
    "lost": "cache: lost to alignment and whole blocks",
}


def pools_table(found: Answer) -> Table:
    """What one request costs on one GPU, pool by pool."""
    return Table(
        "Pools",
        [
            *names("pool", "layers"),
            *numbers("fixed", "in flight", "B per token", "B lost per token"),
        ],
        [
            (
                cost.pool,
                f"{cost.layer_type} × {cost.layers}" if cost.pool != "tables" else cost.layer_type,
                format_bytes(cost.fixed_bytes) if cost.fixed_bytes else ABSENT,
                format_bytes(cost.in_flight_bytes) if cost.in_flight_bytes else ABSENT,
                _per_token(float(cost.marginal_bytes)),
                _per_token(float(cost.padding_bytes)),
            )
            for cost in found.costs
        ],
        note="one request on one GPU",
        keys=2,
    )


def memory_table(found: Answer) -> Table:
    """The memory of the tightest GPU, to the byte."""
    use, layout = found.use, found.scenario.layout
    parts = {words: size for name, words in _MEMORY.items() if (size := getattr(use, name))}
    parts |= {"free" if use.free >= 0 else "missing": use.free, "may be used": use.budget}
    return Table(
        "One GPU",
        [*prose("part"), *numbers("size", "bytes")],
        [(words, format_bytes(size), f"{size:,}") for words, size in parts.items()],
        note=f"{found.concurrency:,} × {found.context:,} tokens over {layout.label}",
    )


def _first(source: str) -> str:
    """The first clause: weights say the others below."""
    return source.partition(";")[0]


_SIGNS = {"whole": "", "taken": "− ", "part": "    of it ", "left": "= "}


def peak_parts(found: Answer) -> Iterator[Part]:
    """What is live at the peak of a step, from the GPU's memory to its KV."""
    peak = peak_of(found)
    yield Table(
        "At its peak",
        [*names("one GPU"), *numbers("size"), *prose("says")],
        [
            (f"{_SIGNS[line.kind]}{line.what}", format_bytes(line.size_bytes), _first(line.source))
            for line in peak.lines
        ],
        note="from its memory to what is left for KV",
    )
    yield f"Not counted by themselves: {', '.join(peak.not_counted)}."


def host_parts(host: HostTier) -> Iterator[Part]:
    """Host memory, pool by pool, and what it keeps."""
    holder = host.holder
    whose = f"each of the node's {host.copies} {holder}s" if host.copies > 1 else f"one {holder}"
    yield Table(
        f"Host memory: {host.name}",
        [*names("pool"), *numbers("pages", "bytes of a page", "size")],
        [
            (pool.name, f"{pool.pages:,}", f"{pool.page_bytes:,}", format_bytes(pool.total_bytes))
            for pool in host.pools
        ],
        note=f"{format_bytes(host.holder_bytes)} of {whose}",
    )
    kept = "; ".join(f"{count:,} {what}" for what, count in host.keeps.items())
    if kept:
        yield f"It keeps {kept}."
    if host.copies > 1:
        yield f"Every {holder} has its own: {format_bytes(host.node_bytes)} of a node's memory."
    if host.gpu_bytes:
        yield (
            f"On the GPU it takes {format_bytes(host.gpu_bytes)} for staging, outside the cache "
            "and not counted above."
        )
    yield from host.notes


def layouts_table(layouts: Sequence[LayoutLine], context_tokens: int) -> Table:
    """The same GPUs laid out otherwise."""
    return Table(
        "Layouts",
        [*names("layout"), *numbers("copies of KV", "weights per GPU", "requests")],
        [
            (
                line.layout.label,
                f"{line.kv_copies}",
                format_bytes(line.weight_bytes),
                f"{line.concurrency:,}",
            )
            for line in layouts
        ],
        note=f"requests of {context_tokens:,} tokens at once",
    )


def options_table(options: Sequence[Option], found: Answer) -> Table:
    """What to change, and what it gains; green if it makes fit what did not."""
    first = "largest gain first" if found.fits else "what makes it fit first, the cheapest leading"
    verdicts = [] if found.fits else ["then"]
    return Table(
        "More room" if found.fits else "To make it fit",
        [
            *names("option"),
            *prose("why"),
            *numbers("frees per GPU", "requests"),
            *names(*verdicts),
        ],
        [
            (
                Text(option.change, "good" if option.fits and not found.fits else "strong"),
                option.reason,
                format_bytes(option.freed_bytes),
                f"{found.max_concurrency:,} → {option.concurrency:,}",
                *(["fits" if option.fits else "still too much"] if verdicts else []),
            )
            for option in options
        ],
        note=first,
    )


def prefix_table(reuse: "Reuse", context_tokens: int) -> Table:
    """Where prefix hits end, and what a prefix weighs outside the GPU."""
    from dsv4kv.sizing.reuse import PERIOD_TOKENS

    rule, moved = reuse.rule, reuse
    period = f" ({PERIOD_TOKENS:,} tokens)"
    again = ""
    if rule.replayed_tokens:
        again = f"the last {rule.replayed_tokens:,} tokens of a hit are computed again; "
    elif rule.uncovered_tokens > 1:
        again = f"no hit covers the last {rule.uncovered_tokens:,} tokens of a prompt; "
    return Table(
        f"A prefix of {context_tokens:,} tokens, stored",
        [
            *names("checkpoints"),
            *numbers("entries and keys", "windows", "states", "tokens to recompute"),
        ],
        [
            (
                f"{kept.strategy}{period if kept.strategy == 'periodic' else ''}",
                format_bytes(kept.context_bytes),
                format_bytes(kept.window_bytes),
                format_bytes(kept.state_bytes),
                f"{kept.recompute_tokens:,}",
            )
            for kept in reuse.persistent
        ],
        caption=(
            f"hits are multiples of {rule.block_tokens:,} tokens, the shortest prompt with one "
            f"has {rule.shortest_prompt_tokens:,}; {again}"
            "a token moved out takes "
            f"{float(moved.padded_bytes):,.2f} B, {float(moved.useful_bytes):,.2f} B of them "
            "useful"
        ),
    )


def _per_token(size: float) -> str:
    return f"{size:,.2f}" if size else ABSENT
