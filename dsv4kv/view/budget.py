"""An answer of ``dsv4kv budget``: what fits, what to change, and how to start it; sweeps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from dsv4kv.budget import answer as an
from dsv4kv.budget.fit import Option, lacking_bytes, max_concurrency, within_limit
from dsv4kv.budget.inputs import DEFAULT_GPU
from dsv4kv.budget.launch import OURS
from dsv4kv.budget.scenario import Scenario
from dsv4kv.budget.sweep import Row
from dsv4kv.engines.contract import Capacity, HostTier
from dsv4kv.engines.flags import WEIGHTS
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import mask_secrets
from dsv4kv.units import counted, format_bytes, format_count
from dsv4kv.view import table as tb
from dsv4kv.view.plots import MAX_LINES, Bar, Line, bars, lines

if TYPE_CHECKING:
    from dsv4kv.budget.inputs import GivenFlag
    from dsv4kv.budget.launch import FlagCost, Reading

_MAX_OPTIONS, _MAX_FLAGS, _MAX_POINTS = 3, 6, 12
_FEW = 0.75  # of the requests that an option promises: fewer in a start with less memory are said
_LONG_CHANGE = 45  # letters of an option: more make a narrow terminal's row three
_MAX_LINE = 300  # characters of a log's line, three rows
_SIGNS = {"whole": "", "taken": "− ", "part": "    of it ", "more": "    not in it ", "left": "= ",
          "less": "    less "}  # fmt: skip
_MAX_VALUE = 34  # letters: deepseek-ai/DeepSeek-V4.1-Flash and a little


def _kind(line: an.Line) -> str:
    return "less" if line.kind == "part" and line.size_bytes < 0 else line.kind


def budget_page(
    found: an.Answer,
    options: Sequence[Option],
    curve: Sequence[tuple[int, int]],
    *,
    given: Mapping[str, str],
    launch: Callable[[Option | None], str],
    command: Sequence[tb.Part] = (),
    uncounted: Sequence[tb.Part] = (),
    misspelt: Mapping[str, str],
) -> tb.Page:
    """What fits, what changes it and the command to start it.

    ``launch`` writes the command that starts an option, or the answer itself for None;
    ``command`` and ``uncounted`` are what ``view_command`` and ``view_uncounted`` give,
    ``misspelt`` flags of the command that are nearly another.
    """
    scenario, inputs, use = found.scenario, found.scenario.inputs, found.use
    engine, most = scenario.engine, found.max_concurrency
    useful = [o for o in options if (o.concurrency > most if found.fits else o.fits)]
    if found.host and found.host.refusal:
        useful = []
    lacks = lacking_bytes(scenario, found.context)
    answer: list[tb.Part] = [_answer(found)]
    for word, flag in misspelt.items():
        answer.append(tb.warning(f"{word} is not counted: did you mean {flag}?"))
    wanted = an.overfull(found)
    if wanted and "memory_fraction" not in scenario.settings.assumed:
        sentence = (
            f"{engine.family.title}'s own estimate of activations, graphs and buffers is "
            f"{format_bytes(wanted)}, and {format_bytes(use.memory - use.budget)} are left free: "
            "a step may run out of memory."
        )
        answer.append(tb.warning(sentence))
    if found.kv_copies > 1 and not lacks:
        tp, copies = scenario.layout.tp, found.kv_copies
        answer.append(f"TP{tp} replicates the KV cache on {copies} GPUs (single KV head).")
    answer += _engine_lines(found) if "engine" in given else []
    facts, host = _facts(found, curve), _host_fact(found)
    if command and host:
        answer.append(tb.Facts(host))
    answer += [] if command or lacks else ["", facts]
    if inputs.host_tier is None and (inputs.host_ratio or inputs.host_size):
        answer.append(tb.warning("--host-ratio and --host-size need a --host-tier"))
    answer += [] if lacks else command
    answer += uncounted
    best = useful[0] if useful else None
    line = launch(best) if best or found.fits else ""
    if useful:
        table = _options_table(useful, found, below=bool(line))
        answer += ["", table.first(_MAX_OPTIONS)]
    if line:
        unsaid = "" if line.startswith("dsv4kv") else _unsaid(scenario, given, bool(command))
        answer += ["", tb.dim(f"{_started(found, best)}{unsaid}:"), tb.Command(line)]
    sections = [tb.Section("Sizes", [facts])] if command else []
    if len(useful) > _MAX_OPTIONS:
        others = replace(_options_table(useful[_MAX_OPTIONS:], found), title="More options")
        sections.append(tb.Section("More options", [others]))
    title = f"{scenario.config.name} on {_gpus(scenario)}, sized as {engine.name}"
    return tb.Page(title, answer, [*sections, *_sections(found, given)])


def _started(found: an.Answer, best: Option | None) -> str:
    """``12 requests (9 in a start with 1.2 GiB less), TP8``: what a command line starts."""
    scenario = best.scenario if best else found.scenario
    words = counted(best.concurrency if best else found.max_concurrency, "request")
    if best and (low := _low(found, best)) is not None:
        words += f" ({low:,} in a start with {format_bytes(found.spread_bytes)} less)"
    return f"{words}, {scenario.layout.label}"


def _sections(found: an.Answer, given: Mapping[str, str]) -> Iterator[tb.Section]:
    scenario, capacity, engine = found.scenario, found.capacity, found.scenario.engine
    shown = {_first_sentence(line) for line in _binding_lines(found)}
    yield tb.Section("Start-up lines", [line for line in found.log_lines if line not in shown])
    units = ""
    if capacity and not engine.own:
        units = (
            f"{capacity.units:,} {engine.unit}s of {float(capacity.unit_bytes):,.10g} B; one "
            f"request counts as {float(capacity.units_per_request):,.0f}."
        )
    missing = f"Not counted: {', '.join(an.overhead_of(found).unknown)}."
    peak: tb.Columns = [
        ("one GPU", lambda line: f"{_SIGNS[_kind(line)]}{line.what}"),
        ("size", lambda line: tb.size(abs(line.size_bytes))),
        ("source", lambda line: line.source.partition(";")[0]),
    ]
    note = "from its memory to what is left for KV"
    of_gpu = tb.Table("Peak memory", peak, list(an.peak_lines(found)), note=note)
    costs: tb.Columns = [
        ("pool", lambda cost: cost.pool),
        ("layers", lambda cost: f"{cost.layer_type} × {cost.layers}"),
        ("fixed", lambda cost: tb.size(cost.fixed_bytes or None)),
        ("in flight", lambda cost: tb.size(cost.in_flight_bytes or None)),
        ("B per token", lambda cost: _decimals(cost.marginal_bytes)),
        ("B lost per token", lambda cost: _decimals(cost.padding_bytes)),
    ]
    pools = tb.Table("Pools", costs, found.costs, note="one request on one GPU", keys=2)
    yield tb.Section("Memory", [of_gpu, missing, pools], units)
    if found.host:
        yield tb.Section("Host memory", list(_host_parts(found.host)))
    defaults: tb.Columns = [
        ("option", lambda line: line.option),
        ("value", lambda line: tb.Number(line.shown)),
        ("reason", lambda line: line.reason),
    ]
    taken = [line for line in an.assumptions(scenario) if line.value is not None]
    assumed = tb.Table("Engine defaults", defaults, taken, note=engine.name)
    yield tb.Section("Assumptions", [assumed, *_assumed(scenario, given)])


def _decimals(bytes_: Any) -> str | None:
    return f"{float(bytes_):,.2f}" if bytes_ else None


def _unsaid(scenario: Scenario, given: Mapping[str, str], of_command: bool) -> str:
    """``; budget --command also needs --gpu b200``: options that no launch command says.

    A line from a command leaves out the flags that change no size.
    """
    newest = find_engine(scenario.engine.family.name)
    defaults = {"gpu": DEFAULT_GPU}
    if scenario.engine.name == newest.name:
        defaults["engine"] = given.get("engine", "")
    words = [
        word
        for name, text in given.items()
        if name.replace("-", "_") in OURS - {"concurrency"} and text != defaults.get(name)
        for word in (f"--{name}", text)
    ]
    others = "; flags that change no size omitted" * of_command
    return f"{others}; budget --command also needs {tb.Command.of(*words)}" if words else others


def _answer(found: an.Answer) -> tb.Finding:
    scenario, inputs = found.scenario, found.scenario.inputs
    requests = counted(found.concurrency, "request")
    load = f"{requests} of {found.context:,} tokens"
    on = _gpus(scenario)
    of = f"{scenario.config.name}, sized as {scenario.engine.name}"
    if not within_limit(scenario, found.concurrency):
        return tb.bad(f"{load} do not run concurrently: {an.limit_sentence(scenario)}.")
    refusal = found.host.refusal if found.host else an.lack_sentence(scenario, found.context)
    if refusal:
        return tb.bad(refusal)
    if found.refused and found.use.free >= 0:
        return tb.bad(f"{scenario.engine.name} refuses to start, though {load} would fit.")
    if not found.fits:
        verb, missing = "does" if found.concurrency == 1 else "do", format_bytes(-found.use.free)
        return tb.bad(f"{load} {verb} not fit on {on}: {missing} too much per GPU; {of}.")
    fewest = ""
    if inputs.gpus is None and not (inputs.tp and inputs.dp):
        asked = f"{counted(inputs.concurrency or 1, 'request')} of {found.context:,} tokens"
        fewest = f" Min GPUs for {asked}: {scenario.layout.gpus:,}."
    if not within_limit(scenario, found.max_concurrency + 1):
        fewest += f" No more run concurrently: {an.limit_sentence(scenario)}."
    verb = "fits" if found.concurrency == 1 else "fit"
    wanted, many = 1, found.max_context
    if (low := found.low_context) is None:
        wanted, many, low = inputs.concurrency or 1, found.max_concurrency, found.low_concurrency
    less = f"in a start with {format_bytes(found.spread_bytes)} less"
    clause = f" ({f'{low:,}' if low else 'none'} {less})" if low < many else ""
    total = f"{found.max_tokens:,} tokens in total"
    if inputs.concurrency and (inputs.context or inputs.gpus is None):
        room, most = format_bytes(found.use.free), found.max_concurrency
        total, clause = f"{room} per GPU free; at most {most:,} fit{clause}", ""
    elif inputs.concurrency:
        load, total = f"{requests} of up to {found.max_context:,} tokens", "longest that fit"
    level: tb.Level = "good" if low >= wanted else "warning"
    return tb.Finding(level, f"{load} {verb}{clause} on {on}: {of}; {total}.{fewest}")


def _gpus(scenario: Scenario) -> str:
    return f"{scenario.layout.gpus:,} × {scenario.gpu.name} ({scenario.layout.label})"


def _engine_lines(found: an.Answer) -> Iterator[tb.Part]:
    engine, capacity = found.scenario.engine, found.capacity
    if ":" in (asked := found.scenario.inputs.engine) and asked != engine.name:
        yield f"{asked} is answered by the rules of {engine.name}."
    seen = "" if engine.seen_in_logs else " (derived from its source, not seen in a log)"
    if found.log_lines:
        yield tb.dim(f"{engine.name} prints{seen}:")
        yield from (f"  {_first_sentence(line)}" for line in _binding_lines(found))
    elif capacity:
        yield tb.dim(f"{engine.name} logs no capacity{seen}.")
    if capacity:
        yield from filter(None, [capacity.note])
        for sentence in _differences(found, capacity):  # cut after the tables
            yield tb.note(sentence)
    if pool := found.decode_pool_tokens:
        each = -(-found.concurrency // found.scenario.layout.dp)
        yield (
            f"Smallest pool of a rank for {counted(each, 'request')} of {found.context:,} tokens "
            f"without retraction, one more prompt in transfer: --max-total-tokens {pool:,}, less "
            "the tokens of one answer."
        )
    if spread := found.spread_bytes:
        tokens = found.tokens_between
        between = f": {tokens[0]:,} to {tokens[1]:,} tokens" if tokens else " of KV memory"
        printed = any("KV cache memory" in line for line in found.log_lines)
        exact = "`dsv4kv explain` your log"
        exact = "exact with --kv-memory of the start's log" if printed else exact
        of = "Assumed, not measured:" if found.spread_assumed else "9 in 10 starts"
        yield f"{of} ± {format_bytes(spread)}{between}; {exact}."


def _binding_lines(found: an.Answer) -> Sequence[str]:
    """Lines of the stage that holds least, which all stages take."""
    if found.capacity is None or len(found.stages) == 1:
        return found.log_lines
    stage = f"PP{found.stages.index(found.capacity)} "
    return [line for line in found.log_lines if line.startswith(stage)]


def _first_sentence(line: str) -> str:
    """A line of a log; of a longer error its first sentence."""
    sentence, _, rest = line.partition(". ")
    return f"{sentence}. …" if rest and len(line) > _MAX_LINE else line


def _differences(found: an.Answer, capacity: Capacity) -> Iterator[str]:
    name, counted = found.scenario.engine.name, float(capacity.concurrency)
    counted *= found.scenario.layout.dp
    if capacity.log_lines and capacity.printed_tokens is None:
        if capacity.concurrency >= 1:
            yield (
                f"{name}'s check at start-up uses other block sizes than its pool; once started, "
                f"the memory holds {counted:,.2f} requests of {found.context:,} tokens."
            )
        return
    if found.use.in_flight and counted < found.max_concurrency:
        room = format_bytes(found.use.in_flight)
        yield (
            f"{name} counts {counted:,.2f} requests, each with {room} of prefill workspace; only "
            f"one prefill runs at a time: {found.max_concurrency:,} fit."
        )
    profiled = found.scenario.engine.logits_room == "profiled"
    if not found.fits and counted >= found.concurrency and found.use.transient and not profiled:
        yield (
            f"{name} reserves nothing for indexer logits ({format_bytes(found.use.transient)}): "
            "it starts, and runs out of memory in a step."
        )


def _facts(found: an.Answer, curve: Sequence[tuple[int, int]]) -> tb.Facts:
    use = found.use
    sizes = {
        "weights": use.weights,
        "reserve": use.reserve,
        "indexer logits": use.transient,
        "cache": use.cache,
        "free": use.free,
        "headroom": use.memory - use.budget,
    }
    parts = ", ".join(f"{name} {format_bytes(held)}" for name, held in sizes.items() if held > 0)
    fixed, marginal, padding = (
        float(sum(getattr(cost, f"{name}_bytes") for cost in found.costs))
        for name in ("fixed", "marginal", "padding")
    )
    stage = f" (stage {use.stage})" if found.scenario.layout.pp > 1 else ""
    costs = [
        *([format_bytes(fixed)] if fixed else []),
        *([f"{marginal:,.2f} B per token"] if marginal else []),
        *([f"{padding:,.2f} B of padding"] if padding else []),
    ]
    workspace = f"; prefill workspace {format_bytes(use.in_flight)}" if use.in_flight else ""
    rows = {
        "one GPU": f"{format_bytes(use.memory)}: {parts}",
        f"one request{stage}": (" + ".join(costs) or "slots are allocated at start") + workspace,
        "requests": "; ".join(f"{format_count(n)}: {requests:,}" for n, requests in curve),
    }
    if found.sent_bytes:
        rows["sent to decode"] = (
            f"{format_bytes(found.sent_bytes)} per rank for a prompt of {found.context:,} tokens"
        )
    return tb.Facts(rows | _host_fact(found))


def _host_fact(found: an.Answer) -> dict[str, str]:
    if not (host := found.host) or not host.node_bytes:
        return {}
    what, units = next(iter(host.keeps.items()), ("tokens of context", 0))
    size = f"{host.name}: {format_bytes(host.node_bytes)} per node"
    return {"host memory": f"{size}; keeps {units:,} {what}"}


def _options_table(
    options: Sequence[Option], found: an.Answer, *, below: bool = False
) -> tb.Table:
    """What to change, and what it gains; ``below`` it is a line with all flags of the first."""

    def change(option: Option) -> tb.Text:
        """The change, with a layout's label as engines disagree on --tp; flags counted if long."""
        given, label = option.inputs, option.scenario.layout.label
        layout = f"--tp {given.get('tp')} --dp {given.get('dp')}"
        words = option.change.replace(layout, label)
        if below and option is options[0] and len(words) > _LONG_CHANGE:
            settings = counted(len(given.keys() - {"gpus", "tp", "dp", "ep"}), "flag")
            words = f"{label} and {settings} below" if "tp" in given else f"the {settings} below"
        return tb.Text(words, "strong" if found.fits else "good")

    def held(option: Option) -> tb.Number:
        low = _low(found, option)
        lowest = "" if low is None else f"{low:,}–"
        return tb.Number(f"{found.max_concurrency:,} → {lowest}{option.concurrency:,}")

    columns: tb.Columns = [
        ("option", change),
        ("requests", held),
        ("frees per GPU", lambda option: tb.size(max(0, option.freed_bytes) or None)),
        ("why", lambda option: option.reason),
    ]
    return tb.Table("More requests" if found.fits else "To make it fit", columns, options)


def _low(found: an.Answer, option: Option) -> int | None:
    """Requests that an option holds in a start with less memory, where they are far fewer."""
    context = option.inputs.get("context", found.context)
    low = max_concurrency(option.scenario, context, found.spread_bytes)
    return low if low < _FEW * option.concurrency else None


def _assumed(scenario: Scenario, given: Mapping[str, str]) -> Iterator[tb.Text]:
    inputs, config = scenario.inputs, scenario.config
    gpu = "" if inputs.hbm else scenario.gpu.name
    ours = {"model": inputs.model, "gpu": gpu, "state": inputs.state}
    defaults = [f"--{name} {value}" for name, value in ours.items() if value and name not in given]
    lines = {"defaults": ", ".join(defaults)} if defaults else {}
    if config.kind == "flat" and config.index_sources is not None:
        keyed = f"{len(config.index_sources)} of {config.num_layers} layers"
        lines["IndexCache"] = f"{keyed} store indexer keys, the others reuse their top-k indices"
    lines["weights"] = scenario.weights.source
    lines["memory"] = (
        f"{format_bytes(scenario.gpu.memory_bytes)} of {scenario.gpu.title}, "
        f"{scenario.gpu.memory_source}; binary, 1 GiB = 2^30 B, 1M = 1,048,576"
    )
    yield from (tb.dim(f"{name}: {line}") for name, line in lines.items())


def view_command(
    reading: "Reading", costs: "Iterable[FlagCost]", memory_bytes: int, gpu: str = ""
) -> list[tb.Part]:
    """What the flags and variables of a launch command do to sizes: those that cost.

    ``gpu`` is taken although nothing names one.
    """
    known = [cost for cost in costs if cost.taken_bytes or cost.requests]
    costly = {cost.flag.spelling for cost in known}
    others = [flag.spelling for flag in reading.counted if flag.spelling not in costly]
    free = f"flags without a cost of their own: {', '.join(others)}"
    free = free if others else ""

    def value(cost: "FlagCost") -> str:
        text = " ".join((cost.flag.value or "on").split())
        return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"

    def taken(cost: "FlagCost") -> tb.Number | None:
        if -cost.taken_bytes > memory_bytes:
            return tb.Number("too much without")
        verb = "takes" if cost.taken_bytes > 0 else "frees"
        held = format_bytes(abs(cost.taken_bytes))
        return tb.Number(f"{verb} {held}") if cost.taken_bytes else None

    table = tb.Table(
        "Command",
        [
            ("flag", lambda cost: cost.flag.spelling),
            ("value", value),
            ("per GPU", taken),
            ("requests", lambda cost: tb.Number(f"{cost.requests:+,}")),
        ],
        known,
        note=f"{reading.launch.title}; cost of each flag",
        caption=free,
        keys=2,
    ).first(_MAX_FLAGS)
    parts: list[tb.Part] = ["", table] if known else [tb.dim(free)] if free else []
    said = (each if each.startswith("a ") else f"not read: {each}" for each in reading.unread)
    parts += map(tb.warning, said)
    parts += [tb.warning(f"no GPU is named: {gpu} is taken, --gpu names another")] if gpu else []
    unknown = [f.spelling for f in reading.unknown if f.spelling not in reading.misspelt]
    if unknown:
        listed = ", ".join(unknown)
        parts.append(tb.dim(f"not known to change sizes, so not counted: {listed}"))
    return parts


def view_uncounted(flags: "Iterable[GivenFlag]", scenario: Scenario) -> list[tb.Part]:
    """Flags that change sizes and are not counted; given weights count all that changes them."""
    inputs, family = scenario.inputs, scenario.engine.family
    parts: list[tb.Part] = []
    for flag in flags:
        if flag.effect != WEIGHTS or inputs.weights is None:
            given = f" {mask_secrets(flag.value)}" if flag.value else ""
            parts.append(tb.warning(f"not counted: {flag.spelling}{given}: {flag.effect}"))
    if family.slots and inputs.weights is None:
        parts.append(
            tb.warning(
                f"weights are the published checkpoint's, all on GPUs: give what {family.title} "
                "puts there of your file with --weights"
            )
        )
    return parts


def _host_parts(host: HostTier) -> Iterator[tb.Part]:
    yield tb.Table(
        f"Host memory: {host.name}",
        [
            ("pool", lambda pool: pool.name),
            ("pages", lambda pool: pool.pages),
            ("bytes of a page", lambda pool: pool.page_bytes),
            ("size", lambda pool: format_bytes(pool.total_bytes)),
        ],
        host.pools,
        note=f"{format_bytes(host.holder_bytes)} of one {host.holder}, {host.copies} on a node",
    )
    if host.gpu_bytes:
        yield f"Staging takes {format_bytes(host.gpu_bytes)} of the GPU, not counted above."
    yield from host.notes


def sweep_page(rows: Sequence[Row]) -> tb.Page:
    """The best and the worst, the table, and a sentence for every point without an answer."""
    problems = {row.problem: _point(row) for row in reversed(rows) if row.problem}
    warnings = [tb.warning(f"{point}: {problem}") for problem, point in problems.items()]
    inputs, swept, label = rows[0].inputs, rows[0].point, _choose_values(rows)[0]
    who = {
        "model": inputs.model,
        "gpu": inputs.gpu or "given memory",
        "gpus": inputs.gpus and counted(inputs.gpus, "GPU"),
        "engine": f"sized as {inputs.engine}",
    }
    same = [str(text) for name, text in who.items() if text and name not in swept]
    title = f"{', '.join(same)}: {label} by {', '.join(swept)}"
    answer: list[tb.Part] = [tb.strong(_ratio_sentence(rows)), *warnings]
    answer += ["", _sweep_table(rows, _MAX_POINTS)]
    given = dict.fromkeys(swept, "")
    assumed = (_assumed(row.found.scenario, given) for row in rows if row.found)
    sections = [
        tb.Section("Chart", [sweep_chart(rows)]),
        tb.Section("All points", [_sweep_table(rows)]),
        tb.Section("Assumptions", list(dict.fromkeys(chain.from_iterable(assumed)))),
    ]
    return tb.Page(title, answer, sections)


def _choose_values(rows: Sequence[Row]) -> tuple[str, Callable[[Row], float]]:
    first = rows[0].inputs
    if any(row.found is None for row in rows):
        return "cache of one request, GiB", lambda row: row.cached_bytes / 2**30
    if first.concurrency is not None and first.gpus is None:
        return "GPUs needed", lambda row: row.found.scenario.layout.gpus if row.found else 0
    if first.concurrency is not None and first.context is not None:
        return "cache on one GPU, GiB", lambda row: row.found.use.cache / 2**30 if row.found else 0
    if first.concurrency is not None:
        return "longest context, tokens", lambda row: row.found.max_context if row.found else 0
    return "requests", lambda row: row.found.max_concurrency if row.found else 0


def _ratio_sentence(rows: Sequence[Row]) -> str:
    """``Requests: 8 at tp 2, 4 at tp 8.``: the best and the worst of what can be chosen.

    Contexts and loads are no choice: over them the geometric means are compared.
    """
    label, value_of = _choose_values(rows)
    choices = [name for name in rows[0].point if name not in ("context", "concurrency")]
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(_point(row, choices), []).append(value_of(row))
    count = len(next(iter(found.values())))
    means = {
        at: geometric_mean(each) if all(each) and count > 1 else min(each)
        for at, each in found.items()
    }
    best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    if label == "GPUs needed":
        best, worst = worst, best
    label = f"{label[0].upper()}{label[1:]}"
    if means[best] == means[worst]:
        at = "every point" if count == 1 else _point(rows[0])
        return f"{label}: {_figure(value_of(rows[0]))} at {at}."
    if count == 1:
        return f"{label}: {_figure(means[best])} at {best}; {_figure(means[worst])} at {worst}."
    if not means[worst]:
        lacking = ", ".join(at for at, mean in means.items() if not mean)
        return f"{label}: most at {best}, 0 in a row of {lacking}."
    times = tb.number(means[best] / means[worst])
    return f"{label}: {best} has {times} × {worst}, geometric mean over {count} points."


def _figure(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"


def _point(row: Row, names: Iterable[str] = ()) -> str:
    return ", ".join(f"{name} {row.point[name]}" for name in names or row.point)


def sweep_chart(rows: Sequence[Row]) -> tb.Chart:
    """A line over the swept numbers, the context before others; a bar a point without any."""
    label, value_of = _choose_values(rows)
    title = f"{label[0].upper()}{label[1:]}"
    numbers = [
        name
        for name in rows[0].point
        if isinstance(getattr(rows[0].inputs, name.replace("-", "_")), int)
    ]
    across = min(numbers, key=lambda name: name != "context", default="")
    series: dict[str, dict[float, float]] = {}
    names: dict[float, str] = {}
    for row in rows if across else ():
        name = ", ".join(value for axis, value in row.point.items() if axis != across)
        at = float(getattr(row.inputs, across.replace("-", "_")))
        series.setdefault(name, {})[at] = value_of(row)
        names[at] = row.point[across]
    if not 0 < len(series) <= MAX_LINES:
        return bars(title, [Bar(_point(r), value_of(r), _figure(value_of(r))) for r in rows])
    drawn = [Line(name, sorted(ys), [ys[x] for x in sorted(ys)]) for name, ys in series.items()]
    return lines(title, drawn, x=across, x_names=names)


def _sweep_table(rows: Sequence[Row], limit: int | None = None) -> tb.Table:
    """A row for every combination; at most ``limit``, and then without sizes per GPU."""

    def of(read: Callable[[an.Answer], Any]) -> tb.Read:
        return lambda row: read(row.found) if row.found else None

    sizes: list[tb.Column] = [
        ("fixed per request", of(lambda a: format_bytes(sum(c.fixed_bytes for c in a.costs)))),
        ("weights per GPU", of(lambda a: format_bytes(a.use.weights))),
        ("free per GPU", of(lambda a: format_bytes(a.use.free))),
    ]
    axes = list(rows[0].point)
    table = tb.Table(
        "Sweep",
        [
            *((name, lambda row, name=name: row.point[name]) for name in axes),
            ("GPUs", of(lambda a: f"{a.scenario.layout.gpus:,} ({a.scenario.layout.label})")),
            ("requests", of(lambda a: a.max_concurrency)),
            ("longest context", of(lambda a: a.max_context)),
            ("cache of a request", lambda row: format_bytes(row.cached_bytes)),
            ("B per token", lambda row: f"{row.token_bytes:,.2f}"),
            *([] if limit else sizes),
        ],
        rows,
        note="per request: without replication and padding; 1 GiB = 2^30 B",
        keys=len(axes),
    )
    return table.first(limit)
