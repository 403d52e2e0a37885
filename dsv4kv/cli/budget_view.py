"""An answer of ``dsv4kv budget`` on a terminal: one panel, and with --verbose every part."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dsv4kv.cli.budget_bar import memory_bar
from dsv4kv.sizing.advice import Option
from dsv4kv.sizing.answer import Answer, count_requests
from dsv4kv.sizing.baseline import kv_heads
from dsv4kv.sizing.compare import LayoutLine
from dsv4kv.sizing.engines.contract import Capacity
from dsv4kv.sizing.scenario import Scenario
from dsv4kv.units import format_bytes

if TYPE_CHECKING:
    from dsv4kv.sizing.reuse import Reuse

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
) -> Iterator[RenderableType]:
    """The answer from its headline down; tables and every option with ``verbose``."""
    scenario = found.scenario
    title = f"{scenario.config.name} on {_gpus(scenario)}, cache sized as {scenario.engine.name}"
    parts: list[RenderableType] = [
        _headline(found),
        *_chosen(found),
        *_beside(found, layouts),
        Text(),
    ]
    parts += [*memory_bar(found.use), Text()]
    parts += [_facts(found, curve, options[:_BRIEF_OPTIONS])]
    yield Panel(Group(*parts), title=Text(title, "bold"), title_align="left", padding=(1, 2))
    if verbose or "engine" in given:
        yield from _engine_lines(found)
    if verbose:
        yield from _tables(found, options, layouts, reuse)
    yield from (Text(), _assumed(scenario, given))


def _tables(
    found: Answer, options: Sequence[Option], layouts: Sequence[LayoutLine], reuse: "Reuse | None"
) -> Iterator[RenderableType]:
    from dsv4kv.cli import budget_tables as tables  # these need numpy

    yield from (Text(), tables.pools_table(found), Text(), tables.memory_table(found))
    if len(layouts) > 1:
        yield from (Text(), tables.layouts_table(layouts, found.context))
    if reuse:
        yield from (Text(), tables.prefix_table(reuse, found.context))
    if options:
        yield from (Text(), tables.options_table(options, found))


def _gpus(scenario: Scenario) -> str:
    layout = scenario.layout
    return f"{layout.gpus:,} × {scenario.gpu.name} ({layout.label})"


def _headline(found: Answer) -> Text:
    """The answer in one sentence."""
    asked = found.scenario.inputs
    requests = count_requests(found.concurrency)
    load = f"{requests} of {found.context:,} tokens"
    if not found.fits:
        missing = format_bytes(-found.use.free)
        verb = "do" if found.concurrency > 1 else "does"
        return Text(f"{load} {verb} not fit: every GPU lacks {missing}.", "bold red")
    if asked.concurrency and (asked.context or asked.gpus is None):
        room = format_bytes(found.use.free)
        return Text(
            f"{load} fit, {room} of every GPU left; at most {found.max_concurrency:,} fit.",
            "bold green",
        )
    tokens = f"{found.max_tokens:,} tokens of context altogether"
    if asked.concurrency:
        return Text(f"{requests} of up to {found.max_context:,} tokens fit at once.", "bold green")
    return Text(f"{load} fit at once: {tokens}.", "bold green")


def _chosen(found: Answer) -> Iterator[Text]:
    """That the number of GPUs is the tool's choice."""
    layout, asked = found.scenario.layout, found.scenario.inputs
    if found.fits and asked.gpus is None and not (asked.tp and asked.dp):
        load = f"{count_requests(asked.concurrency or 1)} of {found.context:,} tokens"
        yield Text(f"{layout.gpus:,} of these GPUs are the fewest that hold {load}.")


def _beside(found: Answer, layouts: Sequence[LayoutLine]) -> Iterator[Text]:
    """What tensor parallelism costs: the copies of the single KV head."""
    best = max(layouts, key=lambda line: line.concurrency)
    heads = "one KV head" if kv_heads(found.scenario.config) == 1 else "no more KV heads"
    better = f"; as {best.layout.label} the same GPUs hold {best.concurrency:,}"
    if found.kv_copies > 1:
        yield Text(
            f"TP{found.scenario.layout.tp} keeps {found.kv_copies} copies of every request's KV "
            f"({heads}){better if best.concurrency > found.max_concurrency else ''}."
        )


def _facts(found: Answer, curve: Sequence[tuple[int, int]], options: Sequence[Option]) -> Table:
    """What one request costs, how many fit at other contexts, and what changes that most."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    fixed = sum(cost.fixed_bytes for cost in found.costs)
    marginal = float(sum(cost.marginal_bytes for cost in found.costs))
    padding = float(sum(cost.padding_bytes for cost in found.costs))
    stage = f" (stage {found.use.stage})" if found.scenario.layout.pp > 1 else ""
    table.add_row(
        f"one request{stage}",
        f"{format_bytes(fixed)} fixed + {marginal:,.2f} B per token "
        f"(+ {padding:,.2f} B lost to padding)",
    )
    if found.use.in_flight:
        table.add_row(
            "tokens in flight", f"{format_bytes(found.use.in_flight)} reserved for one chunk"
        )
    told = "   ".join(f"{_short(tokens)}: {count:,}" for tokens, count in curve)
    table.add_row("requests at once", told)
    for number, option in enumerate(options):
        title = "more room" if found.fits else "to make it fit"
        table.add_row("" if number else title, _tell_option(option, found))
    return table


def _tell_option(option: Option, found: Answer) -> Text:
    """A change and its gain; in green if it makes fit what did not."""
    text = Text(option.change, "green" if option.fits and not found.fits else "bold")
    enough = "" if option.fits else ", still too little"
    text.append(f"  {option.reason}  ", "dim")
    text.append(
        f"frees {format_bytes(option.freed_bytes)} → {option.concurrency:,} requests{enough}",
        "default",
    )
    return text


def _short(tokens: int) -> str:
    for size, unit in ((2**20, "M"), (2**10, "K")):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return f"{tokens:,}"


def _engine_lines(found: Answer) -> Iterator[Text]:
    """What the engine will log for the memory left to it, and what its count means."""
    engine, capacity = found.scenario.engine, found.capacity
    if capacity is None:
        return
    seen = "" if engine.seen_in_logs else " (derived from its source, not seen in a log)"
    if not capacity.log_lines:
        yield Text(f"{engine.name} prints no such line{seen}.", "bold")
    else:
        yield Text(f"{engine.name} prints{seen}:", "bold")
        yield from (Text(f"  {line}") for line in capacity.log_lines)
    yield from _differences(found, capacity)


def _differences(found: Answer, capacity: Capacity) -> Iterator[Text]:
    """Why the lines say otherwise than the answer above, or than each other."""
    counted = float(capacity.concurrency) * found.scenario.layout.dp
    requests = f"{counted:,.2f} of {found.context:,} tokens on all replicas"
    if capacity.log_lines and capacity.printed_tokens is None:
        if capacity.concurrency >= 1:
            yield Text(
                "This check at its start counts blocks of other bytes than those of its pool: by "
                f"these, as it counts once it has started, the memory holds {requests}."
            )
        return
    if found.use.in_flight and counted < found.max_concurrency:
        yield Text(
            f"It counts {format_bytes(found.use.in_flight)} for tokens in flight with every "
            f"request, so {requests}; above, one chunk is in flight at a time."
        )
    if not found.fits and counted >= found.concurrency and found.use.transient:
        yield Text(
            "It sets nothing aside for the indexer's logits "
            f"({format_bytes(found.use.transient)}): it starts, and lacks them in a step."
        )


def _assumed(scenario: Scenario, given: Mapping[str, str]) -> Text:
    """What was not given and which value it has; units, said once."""
    inputs = scenario.inputs
    values = {
        "model": inputs.model,
        "gpu": "" if inputs.hbm else scenario.gpu.name,
        "memory-fraction": f"{float(inputs.memory_fraction):g}",
        "reserve": format_bytes(inputs.reserve),
        "in-flight-tokens": f"{inputs.in_flight_tokens:,}",
        "state": inputs.state,
    }
    assumed = ", ".join(
        f"--{name} {value}" for name, value in values.items() if value and name not in given
    )
    return Text(
        f"assumed: {assumed}\nweights: {scenario.weights.source}\n"
        f"memory: {format_bytes(scenario.gpu.memory_bytes)} of {scenario.gpu.title}, "
        f"{scenario.gpu.memory_source}; binary, 1 GiB = 2^30 B, 1M = 1,048,576",
        "dim",
    )
