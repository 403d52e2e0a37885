"""``dsv4kv trace``: look at serving traces, convert them, make new ones."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from dsv4kv.choices import (
    OFFLINE_POLICIES,
    POLICIES,
    STRATEGIES,
    TRACE_FILES,
    TRACE_FORMATS,
    TRACE_LINES,
    explained,
    listed,
)
from dsv4kv.cli import Group
from dsv4kv.cli.targets import to_file
from dsv4kv.engines.names import RULES
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.files import shipped_names
from dsv4kv.units import UNITS_PER_SECOND
from dsv4kv.view.console import open_console, print_document, say

if TYPE_CHECKING:
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.mrc.curves import Question
    from dsv4kv.mrc.strategies import PrefixCosts
    from dsv4kv.traces import ReadOptions, TraceSummary
    from dsv4kv.traces.files import Watch
    from dsv4kv.traces.request import Request


if TYPE_CHECKING:  # the registries make the choices: no checker can know them
    FormatName: TypeAlias = str
    UnitName: TypeAlias = str
    WrittenName: TypeAlias = str
else:
    FormatName = Literal["auto", *TRACE_FORMATS]
    UnitName = Literal[*UNITS_PER_SECOND]
    WrittenName = Literal[*TRACE_LINES, *TRACE_FILES]

Format = Annotated[
    FormatName, typer.Option("--format", help="Format of SOURCE; auto looks at its first line.")
]


def _reading(metavar: str, text: str) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel="Reading SOURCE")


_SHORT_S = 1.0  # nobody wonders what takes less

_FIELDS = (
    "Names of a timed trace's fields: time, prompt length, output length and, if it has them, "
    "block ids. Left out: timestamp,input_length,output_length,hash_ids."
)
Fields = Annotated[str | None, _reading("T,IN,OUT[,IDS]", _FIELDS)]
TimeUnit = Annotated[
    UnitName,
    _reading("UNIT", f"Unit of a timed trace's times: {listed(UNITS_PER_SECOND)}."),
]
IdTokens = Annotated[
    int | None, _reading("TOKENS", "Tokens that one id of a timed trace stands for.")
]
Stagger = Annotated[
    float, _reading("SECONDS", "Seconds between the starts of a weka folder's conversations.")
]


def read_options(
    fields: str | None,
    time_unit: str,
    id_tokens: int | None,
    stagger: float,
    *,
    any_order: bool = False,
    watch: "Watch | None" = None,
    stores: bool = False,
) -> "ReadOptions":
    """What was given, checked."""
    from dsv4kv.traces.files import ReadOptions, TimedFields

    names = fields.split(",") if fields else []
    if fields and (len(names) not in {3, 4} or not all(names)):
        raise typer.BadParameter(f"--fields {fields}: give three or four names, commas between")
    if not 0 <= stagger < float("inf"):
        raise typer.BadParameter(f"--stagger {stagger}: give seconds, 0 or more")
    if id_tokens is not None and id_tokens < 1:
        raise typer.BadParameter(f"--id-tokens {id_tokens}: an id stands for 1 token or more")
    return ReadOptions(
        TimedFields(*names),
        time_unit,
        id_tokens,
        stagger,
        any_order,
        watch,
        stores,
    )


def _watch(name: str, unit: str) -> "Watcher":
    """Show how far something is that may take a second or minutes."""
    from dsv4kv.cli.progress import Watcher

    return Watcher(open_console(stderr=True), name, unit, after_s=_SHORT_S)


@contextmanager
def _watched_reading(name: str) -> "Iterator[Watch]":
    """Show how much of a trace has been read, in MiB."""
    with _watch(name, "MiB") as watcher:
        yield lambda done, total: watcher.reach(done >> 20, total >> 20)


EPILOG = """\
[bold]Examples[/bold]

dsv4kv trace mrc builtin:chat                            hits by capacity

dsv4kv trace mrc builtin:chat --capacity 1M --rule all   by engines' rules
"""
_STRATEGIES = "periodic:4096,zero,zero:bounded,ends+junctions"


def _ask(metavar: str, text: str) -> Any:
    return typer.Option(help=text, metavar=metavar)


def _output(text: str, callback: Any = to_file) -> Any:
    return typer.Option(help=text, metavar="FILE", rich_help_panel="Output", callback=callback)


_STRATEGY = f"What is kept of windows and states: {listed(STRATEGIES)}, or none; commas between."
_RULE = (
    f"Engines' rules, replayed at every capacity: {listed(RULES)}, or all. Exact for vLLM 0.33 "
    "and SGLang 0.5.23, whose defaults are vllm-v4:semantic and sglang-v4:tail."
)
_SPECULATION = (
    f"How the engines draft, for every rule: {listed(SPECULATIONS)} (MTP where a KV connector is "
    "set), commas between. It changes what hits."
)
_POLICY = (
    f"Other eviction policies, simulated at every capacity: {listed(POLICIES | OFFLINE_POLICIES)}."
)
_MEMORY = (
    "Read a trace that does not fit: keep so much of it (1GiB), and estimate hits from some of "
    "its blocks, each with a 95 % interval. Only the curve: strategies, rules and policies need "
    "whole prompts."
)
_SNAP = (
    "Leave checkpoints inside the partial last block of a prompt, which never comes again, too: "
    "they are written and never found."
)


def mrc(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A trace with block ids: a file, plain or gzip, a folder of weka conversations, "
            "or [bold]builtin:chat[/bold].",
        ),
    ],
    model: Annotated[
        str,
        _ask(
            "NAME|FILE",
            f"Whose cache: {listed(shipped_names('models'))}, or a Hugging Face config.json.",
        ),
    ] = "v4-flash",
    block_tokens: Annotated[
        str | None,
        _ask("TOKENS", "Tokens of a block. Left out: the trace's own; for engines' rules 256."),
    ] = None,
    capacity: Annotated[
        str | None,
        _ask(
            "SIZES",
            "Capacities of the cache, in tokens of context (9358848, 16M) or bytes of compressed "
            "cache (100GiB), commas between. Left out: ten that show the curve.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        _ask(
            "SIZES",
            "Host memory in addition to the capacities (1TB), commas between: what it would win.",
        ),
    ] = None,
    strategy: Annotated[str, _ask("NAMES", _STRATEGY)] = _STRATEGIES,
    rule: Annotated[str | None, _ask("NAMES", _RULE)] = None,
    speculation: Annotated[str, _ask("NAMES", _SPECULATION)] = "none",
    policy: Annotated[str | None, _ask("NAMES", _POLICY)] = None,
    memory: Annotated[str | None, _ask("BYTES", _MEMORY)] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes for the rules.")
    ] = 1,
    chunk_tokens: Annotated[
        str, _ask("TOKENS", "Tokens of a prompt computed at once (max_num_batched_tokens).")
    ] = "8192",
    gpu: Annotated[
        str | None,
        _ask(
            "NAME",
            "GPU for which vLLM's blocks of V4.1 are sized. Left out: as on B200.",
        ),
    ] = None,
    no_snap: Annotated[bool, typer.Option("--no-snap", help=_SNAP)] = False,
    trace_format: Format = "auto",
    fields: Fields = None,
    time_unit: TimeUnit = "s",
    id_tokens: IdTokens = None,
    stagger: Stagger = 0.0,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON document instead of tables.",
            rich_help_panel="Output",
        ),
    ] = False,
    csv: Annotated[Path | None, _output("Write a row for every capacity and rule as CSV.")] = None,
    chart: Annotated[Path | None, _output("Draw the curves as SVG.")] = None,
) -> None:
    """Print the prefix hit rate of a trace by cache capacity, exactly, and why hits are lost.

    A hit ends at the first block that is not cached. What is cached is useful only if window and
    compressor state are there too: strategies say what is kept of them, rules what engines do.
    """
    from dsv4kv.files import write_named
    from dsv4kv.mrc.curves import Question, measure_trace
    from dsv4kv.mrc.strategies import prefix_costs
    from dsv4kv.mrc.thin import measure_stream
    from dsv4kv.sizing.gpus import load_gpu
    from dsv4kv.sizing.lookup import find_model
    from dsv4kv.traces import read_batches
    from dsv4kv.traces.collect import load_paths, tables_of
    from dsv4kv.units import parse_bytes, parse_count
    from dsv4kv.view import mrc as files

    drafts = _names(speculation)
    config = find_model(model)
    every = (
        name
        for name, known in RULES.items()
        if set(drafts) <= set(known.drafts) and config.kind in known.kinds
    )
    if memory and strategy == _STRATEGIES:
        strategy = "none"
    question = Question(
        model=config,
        block_tokens=parse_count(block_tokens) if block_tokens else None,
        capacities_tokens=_capacities(capacity, prefix_costs(config)),
        strategies=() if strategy == "none" else _names(strategy),
        rules=tuple(every) if rule == "all" else _names(rule),
        speculations=drafts,
        policies=_names(policy),
        chunk_tokens=parse_count(chunk_tokens),
        snap=not no_snap,
        arch=load_gpu(gpu).arch if gpu else None,
        host_bytes=tuple(sorted(parse_bytes(one) for one in _names(host))),
    )
    with _watched_reading(f"reading {source}") as watch:
        options = read_options(fields, time_unit, id_tokens, stagger, watch=watch)
        if memory:
            _refuse_whole_prompts(question, memory)
            tables = tables_of(read_batches(source, trace_format, options))
            answer = measure_stream(tables, question, parse_bytes(memory))
        else:
            table = load_paths(source, trace_format, options)
    if not memory:
        with _watch("measuring", "steps") as watcher:
            answer = measure_trace(table, question, watcher.reach, jobs)
    if csv:
        write_named(csv, files.to_csv(answer), "--csv")
    if chart:
        write_named(chart, files.draw_answer(source, config.name, answer), "--chart")
    if as_json:
        print_document(files.to_json(source, config.name, answer))
        return
    from dsv4kv.view.terminal import show

    show(files.show_answer(source, config.name, answer))


def _refuse_whole_prompts(question: "Question", memory: str) -> None:
    """Refuse options whose answer needs all blocks of the prompts."""
    from dsv4kv.errors import ConfigError

    given = {
        "--strategy": question.strategies,
        "--rule": question.rules,
        "--policy": question.policies,
        "--host": question.host_bytes,
        "--block-tokens": question.block_tokens,
    }
    for option in (name for name, value in given.items() if value):
        raise ConfigError(
            f"{option} needs whole prompts, and --memory {memory} keeps some of their blocks: "
            "leave one of them out."
        )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _capacities(text: str | None, costs: "PrefixCosts") -> tuple[int, ...]:
    """Capacities in tokens, rising; sizes end in B."""
    from dsv4kv.units import parse_bytes, parse_count

    return tuple(
        sorted(
            int(parse_bytes(one) / costs.token_bytes)
            if one.upper().endswith("B")
            else parse_count(one)
            for one in _names(text)
        )
    )


app = typer.Typer(
    cls=Group,
    add_completion=False,
    epilog="[bold]Examples[/bold]\n\ndsv4kv trace info builtin:chat",
    help="Look at serving traces, convert them to the toolkit's format, make synthetic ones.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A trace file, plain or gzip, a folder of weka conversations, or "
        "[bold]builtin:chat[/bold].",
    ),
]
_LINES = "File to write, as JSON lines; compressed if it ends in .gz."
Out = Annotated[Path, typer.Argument(metavar="OUT", help=_LINES)]
_TO = f"{explained(TRACE_LINES | TRACE_FILES)}."
_CUT_TOKENS = 131_072  # where synthetic lengths are cut by default
_SHAPES = {
    "tree": "requests input_mean input_max output_mean arrival_rate "
    "prefix_branches prefix_depth prefix_tokens hash_block_tokens",
    "chat": "conversations",
}


def _option(shape: str, text: str, low: int = 1, high: int | None = None) -> Any:
    return typer.Option(min=low, max=high, help=text, rich_help_panel=f"Shape {shape}")


@app.command(epilog="[bold]Examples[/bold]\n\ndsv4kv trace info builtin:chat")
def info(
    source: Source,
    trace_format: Format = "auto",
    fields: Fields = None,
    time_unit: TimeUnit = "s",
    id_tokens: IdTokens = None,
    stagger: Stagger = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of a table.")
    ] = False,
) -> None:
    """Say what a trace asks for: requests, lengths, and how much of its prompts repeats."""
    from dsv4kv.traces import (
        detect_format,
        is_stores_only,
        read_batches,
        resolve_trace,
        summarize_batches,
    )
    from dsv4kv.traces.collect import place_of
    from dsv4kv.view.terminal import show
    from dsv4kv.view.trace import describe_trace

    path = resolve_trace(source)
    name = detect_format(path) if trace_format == "auto" else trace_format
    stores = is_stores_only(path)
    options = read_options(fields, time_unit, id_tokens, stagger, stores=stores)
    with _watched_reading(f"reading {source}") as watch:
        batches = read_batches(path, name, replace(options, watch=watch))
        summary = summarize_batches(batches, lambda number: place_of(number, path, name, options))
    if as_json:
        print_document(_as_json(source, name, path, summary, stores=stores))
        return
    show([f"{source} ({name})", *describe_trace(summary, stores=stores)])


@app.command(
    epilog="[bold]Examples[/bold]\n\ndsv4kv trace convert trace.jsonl first.jsonl.gz --limit 1000"
    "\n\ndsv4kv trace convert trace.jsonl delta.jsonl --to mooncake-delta"
    "\n\ndsv4kv trace convert recording trace.jsonl.gz"
)
def convert(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="OUT", help=f"{_LINES} For weka, a new folder.")],
    trace_format: Format = "auto",
    skip: Annotated[int, typer.Option(min=0, help="Requests to leave out at the start.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Requests to write at most.", show_default="all")
    ] = None,
    sort: Annotated[
        bool, typer.Option("--sort", help="Sort by arrival first; equal times keep their order.")
    ] = False,
    to: Annotated[
        WrittenName,
        typer.Option("--to", help=_TO),
    ] = "dsv4kv",
    fields: Fields = None,
    time_unit: TimeUnit = "s",
    id_tokens: IdTokens = None,
    stagger: Stagger = 0.0,
) -> None:
    """Write a trace, or a part of it, in another format; arrival times are kept.

    A recording becomes a trace of its requests; without a source of them, of what was stored.
    """
    from itertools import islice

    from dsv4kv.recording.folder import is_recording
    from dsv4kv.traces import is_stores_only, read_trace
    from dsv4kv.traces.collect import place_of
    from dsv4kv.traces.histories import check_histories_of

    _check_out(out, to)
    stop = None if limit is None else skip + limit
    if is_recording(Path(source)):
        _convert_recording(Path(source), out, to, slice(skip, stop))
        return
    stores = is_stores_only(Path(source))
    options = read_options(fields, time_unit, id_tokens, stagger, any_order=sort, stores=stores)

    def check(requests: "Iterator[Request]", first: int) -> "Iterator[Request]":
        return check_histories_of(
            requests, lambda number: place_of(first + number, source, trace_format, options)
        )

    with _watched_reading(f"converting {source}") as watch:
        requests = read_trace(source, trace_format, replace(options, watch=watch))
        if sort:
            ordered = sorted(check(requests, 0), key=lambda request: request.arrival_s)
            chosen: Iterator[Request] = islice(ordered, skip, stop)
        else:
            chosen = check(islice(requests, skip, stop), skip)
        _write(chosen, out, to, stores=stores)


def _check_out(out: Path, to: str) -> None:
    """Refuse a file, or the folder of a format that is one, before anything is read.

    Raises:
        TraceError: It cannot be written.
    """
    from dsv4kv.errors import TraceError
    from dsv4kv.files import check_file, check_folder

    if out.is_dir() and to != "weka":
        raise TraceError(f"{out} is a folder: name the file to write.")
    try:
        (check_folder if to == "weka" else check_file)(out)
    except OSError as error:
        raise TraceError(f"{out}: cannot be written ({error.strerror or error}).") from None


def _write(requests: "Iterable[Request]", out: Path, to: str, *, stores: bool) -> None:
    """Write a trace and say how much of it there is."""
    from dsv4kv.errors import TraceError
    from dsv4kv.traces import write_trace

    if stores and to in TRACE_FILES:
        raise TraceError(
            f"a {to} trace cannot say that it is of what a server stored, and has no hit rate: "
            f"take {listed(TRACE_LINES)}."
        )
    if to in TRACE_FILES:
        unit = "block references" if to == "oracle" else "requests"
        amount = f"{TRACE_FILES[to].load()(requests, out):,} {unit}"
    else:
        amount = f"{write_trace(requests, out, to, stores=stores):,} requests"
    say(f"{out}: {amount} written")


def _convert_recording(folder: Path, out: Path, to: str, part: slice) -> None:
    """Write what was recorded, and say what the server said of it."""
    from dsv4kv.recording.convert import describe, in_blocks, read_recording
    from dsv4kv.traces.mooncake import BLOCK_TOKENS

    recorded = read_recording(folder)
    requests: Iterable[Request] = recorded.requests[part]
    if to.startswith("mooncake"):
        requests = in_blocks(requests, BLOCK_TOKENS)
    _write(requests, out, to, stores=recorded.stores_only)
    for sentence in describe(recorded):
        say(sentence)


def _data(metavar: str, text: str) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel="Reading DATA")


def _times(text: str, metavar: str = "") -> Any:
    return typer.Option(help=text, metavar=metavar or None, rich_help_panel="Arrivals")


_PARALLEL_BYTES = 2**22  # of less, starting processes takes longer than tokenizing


@app.command(
    epilog="[bold]Examples[/bold]\n\ndsv4kv trace tokenize sharegpt.json trace.jsonl.gz "
    "--tokenizer DeepSeek-V3 --rate 2"
)
def tokenize(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Conversations (ShareGPT's, OpenAI's messages) or prompts, as JSON lines or one "
            "JSON array, or lines of text; plain or gzip.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help=f"{_LINES} For weka, a new folder.")],
    tokenizer: Annotated[
        Path,
        _data(
            "DIR", "A model's folder, with its tokenizer.json; or such a file. Never downloaded."
        ),
    ],
    template: Annotated[
        str | None,
        typer.Option(
            "--chat-template",
            help="Jinja file, or the name of one of the tokenizer's templates; a file in "
            ".py is run: DeepSeek's encoding_dsv4.py. Left out: the tokenizer's own.",
            metavar="FILE|NAME",
            rich_help_panel="Reading DATA",
        ),
    ] = None,
    template_options: Annotated[
        str,
        _data("JSON", "Options of the template, such as '{\"enable_thinking\": false}'."),
    ] = "{}",
    text: Annotated[
        bool,
        typer.Option(
            "--text",
            help="Every line is a prompt, whatever it looks like.",
            rich_help_panel="Reading DATA",
        ),
    ] = False,
    skip: Annotated[
        bool,
        typer.Option(
            "--skip-defects",
            help="Leave out records that cannot be read, and count them; else the first ends it.",
            rich_help_panel="Reading DATA",
        ),
    ] = False,
    output_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Output tokens of requests that the data has no answer to.",
            rich_help_panel="Reading DATA",
        ),
    ] = 0,
    rate: Annotated[
        float, _times("Conversations that begin in a second (Poisson), if no time is given.")
    ] = 1.0,
    gap: Annotated[
        float, _times("Mean time from a turn to the next (exponential), in seconds.")
    ] = 20.0,
    time_field: Annotated[
        str | None,
        _times(
            "Field of records, or of messages, that says when they were sent: ISO 8601, or a "
            "number.",
            "NAME",
        ),
    ] = None,
    time_unit: Annotated[
        UnitName, _times(f"Unit of numbers: {listed(UNITS_PER_SECOND)}.", "UNIT")
    ] = "s",
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Seed: the same one, the same times.", rich_help_panel="Arrivals"
        ),
    ] = 0,
    block_tokens: Annotated[
        int,
        typer.Option(min=1, help="Tokens that an id stands for.", rich_help_panel="Output"),
    ] = 64,
    salt: Annotated[
        Path | None,
        _output(
            "Secret of the ids, 16 to 64 bytes: the same one, the same ids; a recording's, its. "
            "Left out: random, and not kept.",
            callback=None,
        ),
    ] = None,
    to: Annotated[
        WrittenName, typer.Option("--to", help=_TO, rich_help_panel="Output")
    ] = "dsv4kv",
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Processes that tokenize; of small data one.",
            show_default="one for every core",
        ),
    ] = None,
) -> None:
    """Make a trace of conversations or prompts: lengths, sessions and ids of blocks of tokens.

    Every answer of the assistant is a request. Its prompt is what comes before, as the chat
    template writes it, so turns share what a server could reuse. No text and no token is written.
    """
    from dsv4kv.recording import tokenize as made
    from dsv4kv.recording.convert import in_blocks
    from dsv4kv.recording.datasets import DataOptions, read_dialogues
    from dsv4kv.traces.mooncake import BLOCK_TOKENS

    _check_out(out, to)
    for option, value in (("--rate", rate), ("--gap", gap)):
        if not 0 < value < float("inf"):
            raise typer.BadParameter(f"{option} {value}: give a number above 0")
    job = made.Job(
        tokenizer,
        made.read_salt(salt),
        template,
        _object(template_options, "--template-options"),
        block_tokens,
    )
    counts = made.Counts()
    with _watched_reading(f"tokenizing {data}") as watch:
        options = DataOptions(text, time_field, time_unit, skip, watch)
        turns = made.tokenize(read_dialogues(data, options), job, processes or _processes(data))
        arrivals = made.Arrivals(rate, gap, seed)
        requests = made.arrange(
            turns,
            arrivals,
            counts,
            block_tokens=block_tokens,
            output_tokens=output_tokens,
            skip=skip,
        )
        if to.startswith("mooncake"):
            requests = in_blocks(requests, BLOCK_TOKENS)
        _write(requests, out, to, stores=False)
    for sentence in made.describe(counts, output_tokens):
        say(sentence)


def _processes(data: Path) -> int:
    from dsv4kv.processes import usable_cores

    try:
        small = data.stat().st_size < _PARALLEL_BYTES
    except OSError:  # said where it is read
        small = True
    return 1 if small else usable_cores()


def _object(text: str, option: str) -> dict[str, Any]:
    from dsv4kv.files import Unparsable, parse_json

    try:
        value = parse_json(text)
    except Unparsable as error:
        raise typer.BadParameter(f"{option} {text}: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{option} {text}: give a JSON object")
    return value


app.command("mrc", epilog=EPILOG)(mrc)


@app.command(
    epilog="[bold]Examples[/bold]\n\ndsv4kv trace synth docs.jsonl.gz --requests 1000 "
    "--prefix-branches 8\n\ndsv4kv trace synth chat.jsonl --shape chat"
)
def synth(
    context: typer.Context,
    out: Out,
    shape: Annotated[
        Literal["tree", "chat"],
        typer.Option(
            help="tree: independent prompts that begin with text from a tree of shared prefixes. "
            "chat: conversations over one system prompt, each turn extending the last."
        ),
    ] = "tree",
    seed: Annotated[int, typer.Option(min=0, help="Seed: the same one, the same trace.")] = 0,
    conversations: Annotated[int, _option("chat", "Conversations.")] = 12,
    requests: Annotated[int, _option("tree", "Requests.")] = 64,
    input_mean: Annotated[int, _option("tree", "Mean prompt (log-normal), in tokens.")] = 1024,
    input_max: Annotated[
        int, _option("tree", "Cut prompts to this many tokens.", high=2**31 - 1)
    ] = _CUT_TOKENS,
    output_mean: Annotated[
        int, _option("tree", "Mean output (log-normal), in tokens.", high=_CUT_TOKENS)
    ] = 128,
    arrival_rate: Annotated[
        float | None,
        typer.Option(
            help="Poisson arrivals per second.",
            show_default="all wait from the start",
            rich_help_panel="Shape tree",
        ),
    ] = None,
    prefix_branches: Annotated[
        int, _option("tree", "Children of each prefix; 0 shares nothing.", low=0, high=1_000_000)
    ] = 0,
    prefix_depth: Annotated[int, _option("tree", "Levels of the prefix tree.", high=10_000)] = 2,
    prefix_tokens: Annotated[int, _option("tree", "Tokens that a level adds.")] = 512,
    hash_block_tokens: Annotated[
        int, _option("tree", "Tokens one prefix hash stands for.", high=2**31 - 1)
    ] = 512,
) -> None:
    """Make a trace; the same options and seed make the same file."""
    from dsv4kv.config.bench import Lengths, Synthetic
    from dsv4kv.traces import write_trace
    from dsv4kv.traces.synth import chat_trace, synthesize

    _refuse_foreign_options(context, shape)
    if input_mean > input_max:
        raise typer.BadParameter(f"--input-mean {input_mean} is above --input-max {input_max}")
    if arrival_rate is not None and not arrival_rate > 0:
        raise typer.BadParameter(f"--arrival-rate {arrival_rate} is not above 0 per second")
    settings = Synthetic(
        requests=requests,
        input=Lengths(mean=input_mean, high=input_max),
        output=Lengths(mean=output_mean),
        arrival_rate=arrival_rate,
        prefix_branches=prefix_branches,
        prefix_depth=prefix_depth,
        prefix_tokens=prefix_tokens,
        hash_block_tokens=hash_block_tokens,
    )
    made = chat_trace(conversations, seed) if shape == "chat" else synthesize(settings, seed)
    say(f"{out}: {write_trace(made, out):,} requests written")


def _refuse_foreign_options(context: typer.Context, shape: str) -> None:
    for other in _SHAPES.keys() - {shape}:
        for name in _SHAPES[other].split():
            origin = context.get_parameter_source(name)
            if origin is not None and origin.name == "COMMANDLINE":
                option = name.replace("_", "-")
                raise typer.BadParameter(f"--{option} belongs to --shape {other}, not {shape}")


def _as_json(source: str, name: str, path: Path, summary: "TraceSummary", *, stores: bool) -> str:
    import json
    from dataclasses import asdict

    from dsv4kv.traces import trace_sha256

    document: dict[str, Any] = {"source": source, "format": name, "sha256": trace_sha256(path)}
    share = {"stores_only": True} if stores else {"hit_share": summary.hit_share}
    return json.dumps(document | asdict(summary) | share, indent=2)
