"""An answer of ``dsv4kv budget`` on a terminal: one panel, and with --verbose every part."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dsv4kv.engines.contract import Capacity
from dsv4kv.sizing.advice import Option
from dsv4kv.sizing.answer import Answer, count_requests
from dsv4kv.sizing.fit import LayoutLine, RankUse
from dsv4kv.sizing.lookup import kv_heads
from dsv4kv.sizing.reuse import PERIOD_TOKENS, Reuse
from dsv4kv.sizing.scenario import Scenario
from dsv4kv.sizing.sweep import Row
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import ABSENT, new_table

_BAR = 60
_LEGEND_COLUMNS = 3
# part of RankUse: character, style, words
_PARTS = {
    "weights": ("█", "blue", "weights"),
    "reserve": ("▓", "magenta", "reserve"),
    "transient": ("▞", "yellow", "indexer logits"),
    "fixed": ("▒", "cyan", "fixed"),
    "tokens": ("░", "green", "tokens"),
    "lost": ("╳", "red", "lost to rounding"),
    "free": ("·", "dim", "free"),
    "spare": ("-", "dim", "headroom"),
}


def memory_bar(use: RankUse) -> Iterator[RenderableType]:
    """One GPU's memory as a bar of characters, and what they mean."""
    sizes = _sizes(use)
    whole = max(use.memory, sum(sizes.values()))
    bar, end, filled = Text(), 0, 0
    for name, size in sizes.items():
        filled += size
        character, style, _ = _PARTS[name]
        cells = round(_BAR * filled / whole) - end
        bar.append(character * cells, style)
        end += cells
    over = f"{format_bytes(whole)} of " if whole > use.memory else ""
    yield Text("one GPU  ").append(bar).append(f"  {over}{format_bytes(use.memory)}")
    legend = Table.grid(padding=(0, 3, 0, 0))
    shown = [_key(name, size) for name, size in sizes.items() if size]
    for start in range(0, len(shown), _LEGEND_COLUMNS):
        legend.add_row(*shown[start : start + _LEGEND_COLUMNS])
    yield Padding(legend, (0, 0, 0, 9))


def _key(name: str, size: int) -> Text:
    character, style, words = _PARTS[name]
    return Text(f"{character} ", style).append(f"{words} {format_bytes(size)}", "default")


def _sizes(use: RankUse) -> dict[str, int]:
    return {
        "weights": use.weights,
        "reserve": use.reserve,
        "transient": use.transient,
        "fixed": use.fixed + use.shared + use.in_flight,
        "tokens": use.tokens,
        "lost": use.lost,
        "free": max(0, use.free),
        "spare": use.memory - use.budget,
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
    # GONE  # these need numpy

    yield from (Text(), pools_table(found), Text(), memory_table(found))
    if len(layouts) > 1:
        yield from (Text(), layouts_table(layouts, found.context))
    if reuse:
        yield from (Text(), prefix_table(reuse, found.context))
    if options:
        yield from (Text(), options_table(options, found))


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
    table = new_table("Pools", "one request on one GPU")
    for header in ("pool", "layers"):
        table.add_column(header, no_wrap=True)
    for header in ("fixed", "in flight", "B per token", "B lost per token"):
        table.add_column(header, justify="right")
    for cost in found.costs:
        table.add_row(
            cost.pool,
            f"{cost.layer_type} × {cost.layers}" if cost.pool != "tables" else cost.layer_type,
            format_bytes(cost.fixed_bytes) if cost.fixed_bytes else ABSENT,
            format_bytes(cost.in_flight_bytes) if cost.in_flight_bytes else ABSENT,
            _per_token(float(cost.marginal_bytes)),
            _per_token(float(cost.padding_bytes)),
        )
    return table


def memory_table(found: Answer) -> Table:
    """The memory of the tightest GPU, to the byte."""
    use = found.use
    load = f"{found.concurrency:,} × {found.context:,} tokens over {found.scenario.layout.label}"
    table = new_table("One GPU", load)
    table.add_column("part")
    for header in ("size", "bytes"):
        table.add_column(header, justify="right")
    for name, words in _MEMORY.items():
        size = getattr(use, name)
        if size:
            table.add_row(words, format_bytes(size), f"{size:,}")
    table.add_row("free" if use.free >= 0 else "missing", format_bytes(use.free), f"{use.free:,}")
    table.add_row("may be used", format_bytes(use.budget), f"{use.budget:,}")
    return table


def layouts_table(layouts: Sequence[LayoutLine], context_tokens: int) -> Table:
    """The same GPUs laid out otherwise."""
    table = new_table("Layouts", f"requests of {context_tokens:,} tokens at once")
    table.add_column("layout")
    for header in ("copies of KV", "weights per GPU", "requests"):
        table.add_column(header, justify="right")
    for line in layouts:
        table.add_row(
            line.layout.label,
            f"{line.kv_copies}",
            format_bytes(line.weight_bytes),
            f"{line.concurrency:,}",
        )
    return table


def options_table(options: Sequence[Option], found: Answer) -> Table:
    """What to change, and what it gains."""
    note = (
        "what makes it fit first, the cheapest leading" if not found.fits else "largest gain first"
    )
    table = new_table("Change", note)
    table.add_column("option", no_wrap=True)
    table.add_column("why")
    table.add_column("frees per GPU", justify="right")
    table.add_column("requests", justify="right")
    if not found.fits:
        table.add_column("then")
    for option in options:
        change = f"{found.max_concurrency:,} → {option.concurrency:,}"
        cells = [option.change, option.reason, format_bytes(option.freed_bytes), change]
        if not found.fits:
            cells.append("fits" if option.fits else "still too much")
        table.add_row(*cells)
    return table


def prefix_table(reuse: Reuse, context_tokens: int) -> Table:
    """Where prefix hits end, and what a prefix weighs outside the GPU."""
    rule, moved = reuse.rule, reuse.offloaded
    note = (
        f"hits are multiples of {rule.block_tokens:,} tokens, the shortest prompt with one has "
        f"{rule.shortest_prompt_tokens:,}; a token moved out takes "
        f"{float(moved.padded_bytes):,.2f} B, {float(moved.useful_bytes):,.2f} B of them useful"
    )
    table = new_table(f"A prefix of {context_tokens:,} tokens, stored")
    table.caption, table.caption_justify = note, "left"
    table.add_column("windows")
    for header in ("entries and keys", "windows", "states", "tokens to recompute"):
        table.add_column(header, justify="right")
    for kept in reuse.persistent:
        period = f" ({PERIOD_TOKENS:,} tokens)" if kept.strategy == "periodic" else ""
        table.add_row(
            f"{kept.strategy}{period}",
            format_bytes(kept.context_bytes),
            format_bytes(kept.window_bytes),
            format_bytes(kept.state_bytes),
            f"{kept.recompute_tokens:,}",
        )
    return table


def _per_token(size: float) -> str:
    return f"{size:,.2f}" if size else ABSENT


_HEADERS = (
    "GPUs",
    "requests\nat once",
    "longest\ncontext",
    "cache of a\nrequest",
    "B per\ntoken",
    "fixed per\nrequest",
    "weights\nper GPU",
    "free\nper GPU",
)


def view_sweep(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """The table, and a sentence for every combination without an answer."""
    table = new_table("Sweep", "sizes are binary; of a request: stored once, without padding")
    for name in rows[0].point:
        table.add_column(name, no_wrap=True)
    for header in _HEADERS:
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row.point.values(), *_cells(row))
    yield table
    problems = {row.problem: _point(row) for row in reversed(rows) if row.problem}
    for problem, point in problems.items():
        yield Text(f"{point}: {problem}", "yellow")


def _point(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.point.items())


def _cells(row: Row) -> list[str]:
    request = [format_bytes(row.cached_bytes), f"{row.token_bytes:,.2f}"]
    if (found := row.found) is None:
        return [ABSENT] * 3 + request + [ABSENT] * 3
    layout, use = found.scenario.layout, found.use
    return [
        f"{layout.gpus:,} ({layout.label})",
        f"{found.max_concurrency:,}",
        f"{found.max_context:,}",
        *request,
        format_bytes(sum(cost.fixed_bytes for cost in found.costs)),
        format_bytes(use.weights),
        format_bytes(use.free),
    ]
