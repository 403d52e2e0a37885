"""``dsv4kv trace``: look at serving traces, convert them, make new ones."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import islice
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
from dsv4kv.cli import examples, group
from dsv4kv.cli.options import AsJson, Text, Verbose, argument, flag, option, print_json, to_file
from dsv4kv.engines.names import RULES
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.files import (
    Unparsable,
    check_file,
    check_folder,
    parse_json,
    shipped_names,
    write_named,
)
from dsv4kv.units import UNITS_PER_SECOND, parse_bytes, parse_count
from dsv4kv.view.console import open_console, print_document, say

if TYPE_CHECKING:
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.traces import ReadOptions
    from dsv4kv.traces.files import Watch
    from dsv4kv.traces.request import Request

    # the registries make the choices: no checker can know them
    FormatName: TypeAlias = str
    UnitName: TypeAlias = str
    WrittenName: TypeAlias = str
else:
    FormatName = Literal["auto", *TRACE_FORMATS]
    UnitName = Literal[*UNITS_PER_SECOND]
    WrittenName = Literal[*TRACE_LINES, *TRACE_FILES]

app = group(
    "Look at serving traces, convert them to the toolkit's format, make synthetic ones.",
    "dsv4kv trace info builtin:chat",
)

_YEAR_S = 365 * 86_400
_SHORT_S = 1.0  # nobody wonders what takes less
_PARALLEL_BYTES = 2**22  # of less, starting processes takes longer than tokenizing
_CUT_TOKENS = 131_072  # where synthetic lengths are cut by default
_STRATEGIES = "periodic:4096,zero,zero:bounded,ends+junctions"
_SHAPES = {
    "tree": "requests input_mean input_max output_mean arrival_rate "
    "prefix_branches prefix_depth prefix_tokens hash_block_tokens",
    "chat": "conversations",
}

# ---- options of several commands

_READING: dict[str, Any] = {"panel": "Reading SOURCE", "rare": True}
_DATA = {"panel": "Reading DATA"}
_TIMES = {"panel": "Arrivals"}
_OUTPUT = {"panel": "Output"}
_TREE = {"panel": "Shape tree"}
_SOURCE = (
    "A trace file, plain or gzip, a folder of weka conversations, or [bold]builtin:chat[/bold]."
)
_LINES = "File to write, as JSON lines; compressed if it ends in .gz."
_FIELDS = (
    "Names of a timed trace's fields: time, prompt length, output length and, if it has them, "
    "block ids. Left out: timestamp,input_length,output_length,hash_ids."
)
_UNITS = listed(UNITS_PER_SECOND)

Source = Annotated[str, argument(_SOURCE, "SOURCE", show_default=True)]
OutFile = Annotated[Path, argument(f"{_LINES} For weka, a new folder.", "OUT", show_default=True)]
To = Annotated[WrittenName, option(f"{explained(TRACE_LINES | TRACE_FILES)}.", None, "--to")]
Format = Annotated[
    FormatName, option("Format of SOURCE; auto looks at its first line.", None, "--format")
]
Fields = Annotated[Text, option(_FIELDS, "T,IN,OUT[,IDS]", **_READING)]
TimeUnit = Annotated[UnitName, option(f"Unit of a timed trace: {_UNITS}.", "UNIT", **_READING)]
IdTokens = Annotated[
    int | None, option("Tokens that one id of a timed trace stands for.", "TOKENS", **_READING)
]
Stagger = Annotated[
    float,
    option("Seconds between the starts of a weka folder's conversations.", "SECONDS", **_READING),
]


def read_options(
    fields: str | None, time_unit: str, id_tokens: int | None, stagger: float, **more: Any
) -> "ReadOptions":
    """What was given, checked; ``more`` are other fields of ``ReadOptions``."""
    from dsv4kv.traces.files import ReadOptions, TimedFields

    names = fields.split(",") if fields else []
    if fields and (len(names) not in {3, 4} or not all(names)):
        raise typer.BadParameter(f"--fields {fields}: give three or four names, commas between")
    if not 0 <= stagger <= _YEAR_S:
        raise typer.BadParameter(f"--stagger {stagger}: give seconds, from 0 to {_YEAR_S:,}")
    if id_tokens is not None and id_tokens < 1:
        raise typer.BadParameter(f"--id-tokens {id_tokens}: an id stands for 1 token or more")
    return ReadOptions(TimedFields(*names), time_unit, id_tokens, stagger, **more)


def _watch(name: str, unit: str) -> "Watcher":
    """Show how far something is that may take a second or minutes."""
    from dsv4kv.cli.progress import Watcher

    return Watcher(open_console(stderr=True), name, unit, after_s=_SHORT_S)


@contextmanager
def _watched_reading(name: str) -> "Iterator[Watch]":
    """Show how much of a trace has been read, in MiB."""
    with _watch(name, "MiB") as watcher:
        yield lambda done, total: watcher.reach(done >> 20, total >> 20)


# ---- info and convert


@app.command(epilog=examples("dsv4kv trace info builtin:chat"))
def info(
    source: Source,
    trace_format: Format = "auto",
    fields: Fields = None,
    time_unit: TimeUnit = "s",
    id_tokens: IdTokens = None,
    stagger: Stagger = 0.0,
    as_json: AsJson = False,
) -> None:
    """Say what a trace asks for: requests, lengths, and how much of its prompts repeats."""
    from dsv4kv import traces
    from dsv4kv.traces.collect import place_of
    from dsv4kv.view.render import show
    from dsv4kv.view.trace import describe_trace

    path = traces.resolve_trace(source)
    name = traces.detect_format(path) if trace_format == "auto" else trace_format
    stores = traces.is_stores_only(path)
    options = read_options(fields, time_unit, id_tokens, stagger, stores=stores)
    with _watched_reading(f"reading {source}") as watch:
        batches = traces.read_batches(path, name, replace(options, watch=watch))
        summary = traces.summarize_batches(
            batches, lambda number: place_of(number, path, name, options)
        )
    if as_json:
        document: dict[str, Any] = {"source": source, "format": name}
        document |= {"sha256": traces.trace_sha256(path), **asdict(summary)}
        print_json(
            document | ({"stores_only": True} if stores else {"hit_share": summary.hit_share})
        )
        return
    show([f"{source} ({name})", *describe_trace(summary, stores=stores)])


@app.command(
    epilog=examples(
        "dsv4kv trace convert trace.jsonl first.jsonl.gz --limit 1000",
        "dsv4kv trace convert trace.jsonl delta.jsonl --to mooncake-delta",
        "dsv4kv trace convert recording trace.jsonl.gz",
    )
)
def convert(
    source: Source,
    out: OutFile,
    trace_format: Format = "auto",
    skip: Annotated[int, option("Requests to leave out at the start.", min=0)] = 0,
    limit: Annotated[
        int | None, option("Requests to write at most.", min=1, show_default="all")
    ] = None,
    sort: Annotated[
        bool, flag("--sort", "Sort by arrival first; equal times keep their order.")
    ] = False,
    to: To = "dsv4kv",
    fields: Fields = None,
    time_unit: TimeUnit = "s",
    id_tokens: IdTokens = None,
    stagger: Stagger = 0.0,
) -> None:
    """Write a trace, or a part of it, in another format; arrival times are kept.

    A recording becomes a trace of its requests; without a source of them, of what was stored.
    """
    from dsv4kv.record.folder import is_recording
    from dsv4kv.traces import is_stores_only, read_trace
    from dsv4kv.traces.collect import place_of
    from dsv4kv.traces.summary import check_histories_of

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
    if out.is_dir() and to != "weka":
        raise TraceError(f"{out} is a folder: name the file to write.")
    try:
        (check_folder if to == "weka" else check_file)(out)
    except OSError as error:
        raise TraceError(f"{out}: cannot be written ({error.strerror or error}).") from None


def _write(requests: "Iterable[Request]", out: Path, to: str, *, stores: bool) -> None:
    """Write a trace and say how much of it there is."""
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
    from dsv4kv.record.convert import describe, in_blocks, read_recording
    from dsv4kv.traces.formats import BLOCK_TOKENS

    recorded = read_recording(folder)
    requests: Iterable[Request] = recorded.requests[part]
    if to.startswith("mooncake"):
        requests = in_blocks(requests, BLOCK_TOKENS)
    _write(requests, out, to, stores=recorded.stores_only)
    for sentence in describe(recorded):
        say(sentence)


# ---- tokenize

_CONVERSATIONS = (
    "Conversations (ShareGPT's, OpenAI's messages) or prompts, as JSON lines or one JSON array, "
    "or lines of text; plain or gzip."
)
_TOKENIZER = "A model's folder, with its tokenizer.json; or such a file. Never downloaded."
_TEMPLATE = (
    "Jinja file, or the name of one of the tokenizer's templates; a file in .py is run: "
    "DeepSeek's encoding_dsv4.py. Left out: the tokenizer's own."
)
_TEMPLATE_OPTIONS = "Options of the template, such as '{\"enable_thinking\": false}'."
_DEFECTS = "Leave out records that cannot be read, and count them; else the first ends it."
_UNANSWERED = "Output tokens of requests that the data has no answer to."
_RATE = "Conversations that begin in a second (Poisson), if no time is given."
_GAP = "Mean time from a turn to the next (exponential), in seconds."
_FIELD = "Field of records, or of messages, that says when they were sent: ISO 8601, or a number."
_SALT = (
    "Secret of the ids, 16 to 64 bytes: the same one, the same ids; a recording's, its. Left out: "
    "random, and not kept."
)
_PROCESSES = "Processes that tokenize; of small data one."


@app.command(
    epilog=examples(
        "dsv4kv trace tokenize sharegpt.json trace.jsonl.gz --tokenizer DeepSeek-V3 --rate 2"
    )
)
def tokenize(
    data: Annotated[Path, argument(_CONVERSATIONS, "DATA", show_default=True)],
    out: OutFile,
    tokenizer: Annotated[Path, option(_TOKENIZER, "DIR", **_DATA)],
    template: Annotated[Text, option(_TEMPLATE, "FILE|NAME", "--chat-template", **_DATA)] = None,
    template_options: Annotated[str, option(_TEMPLATE_OPTIONS, "JSON", rare=True, **_DATA)] = "{}",
    text: Annotated[
        bool, flag("--text", "Every line is a prompt, whatever it looks like.", **_DATA)
    ] = False,
    skip: Annotated[bool, flag("--skip-defects", _DEFECTS, rare=True, **_DATA)] = False,
    output_tokens: Annotated[int, option(_UNANSWERED, min=0, rare=True, **_DATA)] = 0,
    rate: Annotated[float, option(_RATE, **_TIMES)] = 1.0,
    gap: Annotated[float, option(_GAP, rare=True, **_TIMES)] = 20.0,
    time_field: Annotated[Text, option(_FIELD, "NAME", rare=True, **_TIMES)] = None,
    time_unit: Annotated[UnitName, option(f"Unit of numbers: {_UNITS}.", "UNIT", **_TIMES)] = "s",
    seed: Annotated[int, option("Seed: the same one, the same times.", min=0, **_TIMES)] = 0,
    block_tokens: Annotated[int, option("Tokens that an id stands for.", min=1, **_OUTPUT)] = 64,
    salt: Annotated[Path | None, option(_SALT, "FILE", **_OUTPUT)] = None,
    to: To = "dsv4kv",
    processes: Annotated[
        int | None,
        option(_PROCESSES, min=1, max=1024, show_default="one for every core", rare=True),
    ] = None,
) -> None:
    """Make a trace of conversations or prompts: lengths, sessions and ids of blocks of tokens.

    Every answer of the assistant is a request. Its prompt is what comes before, as the chat
    template writes it, so turns share what a server could reuse. No text and no token is written.
    """
    from dsv4kv.processes import usable_cores
    from dsv4kv.record import tokenize as made
    from dsv4kv.record.convert import in_blocks
    from dsv4kv.record.datasets import DataOptions, read_dialogues
    from dsv4kv.traces.formats import BLOCK_TOKENS

    _check_out(out, to)
    for name, value in (("--rate", rate), ("--gap", gap)):
        if not 1e-6 <= value <= 1e6:
            raise typer.BadParameter(f"{name} {value}: give a number from 0.000001 to 1,000,000")
    options = _object(template_options, "--template-options")
    job = made.Job(tokenizer, made.read_salt(salt), template, options, block_tokens)
    counts = made.Counts()
    large = data.is_file() and data.stat().st_size >= _PARALLEL_BYTES
    count = processes or (usable_cores() if large else 1)
    with _watched_reading(f"tokenizing {data}") as watch:
        reading = DataOptions(text, time_field, time_unit, skip, watch)
        turns = made.tokenize(read_dialogues(data, reading), job, count)
        requests = made.arrange(
            turns,
            made.Arrivals(rate, gap, seed),
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


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except Unparsable as error:
        raise typer.BadParameter(f"{name} {text}: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{name} {text}: give a JSON object")
    return value


# ---- mrc

_WHOSE = f"Whose cache: {listed(shipped_names('models'))}, or a Hugging Face config.json."
_BLOCK = "Tokens of a block. Left out: the trace's own; for engines' rules 256."
_CAPACITY = (
    "Capacities of the cache, in tokens of context (9358848, 16M) or bytes of compressed cache "
    "(100GiB), commas between. Left out: ten that show the curve."
)
_HOST = "Host memory in addition to the capacities (1TB), commas between: what it would win."
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


@app.command(
    epilog=examples(
        "dsv4kv trace mrc builtin:chat                            hits by capacity",
        "dsv4kv trace mrc builtin:chat --capacity 1M --rule all   by engines' rules",
    )
)
def mrc(
    source: Annotated[str, argument(f"With block ids: {_SOURCE}", "SOURCE", show_default=True)],
    model: Annotated[str, option(_WHOSE, "NAME|FILE")] = "v4-flash",
    block_tokens: Annotated[Text, option(_BLOCK, "TOKENS", rare=True)] = None,
    capacity: Annotated[Text, option(_CAPACITY, "SIZES")] = None,
    host: Annotated[Text, option(_HOST, "SIZES", rare=True)] = None,
    strategy: Annotated[str, option(_STRATEGY, "NAMES")] = _STRATEGIES,
    rule: Annotated[Text, option(_RULE, "NAMES")] = None,
    speculation: Annotated[str, option(_SPECULATION, "NAMES", rare=True)] = "none",
    policy: Annotated[Text, option(_POLICY, "NAMES")] = None,
    memory: Annotated[Text, option(_MEMORY, "BYTES", rare=True)] = None,
    jobs: Annotated[int, option("Processes for the rules.", "N", "--jobs", "-j", min=1)] = 1,
    chunk_tokens: Annotated[
        str, option("Tokens of a prompt computed at once (max_num_batched_tokens).", "TOKENS")
    ] = "8192",
    gpu: Annotated[
        Text,
        option("GPU for which vLLM sizes blocks of V4.1. Left out: B200.", "NAME"),
    ] = None,
    no_snap: Annotated[bool, flag("--no-snap", _SNAP, rare=True)] = False,
    trace_format: Format = "auto",
    fields: Fields = None,
    time_unit: TimeUnit = "s",
    id_tokens: IdTokens = None,
    stagger: Stagger = 0.0,
    as_json: AsJson = False,
    verbose: Verbose = False,
    csv: Annotated[
        Path | None,
        option("Write rows by capacity and rule as CSV.", "FILE", callback=to_file, **_OUTPUT),
    ] = None,
    chart: Annotated[
        Path | None, option("Draw the curves as SVG.", "FILE", callback=to_file, **_OUTPUT)
    ] = None,
) -> None:
    """Print the prefix hit rate of a trace by cache capacity, exactly, and why hits are lost.

    A hit ends at the first block that is not cached. What is cached is useful only if window and
    compressor state are there too: strategies say what is kept of them, rules what engines do.
    """
    from dsv4kv.budget.gpus import load_gpu
    from dsv4kv.budget.lookup import find_model
    from dsv4kv.replay.mrc.curves import Question, measure_trace
    from dsv4kv.replay.mrc.strategies import prefix_costs
    from dsv4kv.replay.mrc.thin import measure_stream
    from dsv4kv.traces import read_batches
    from dsv4kv.traces.collect import load_paths
    from dsv4kv.view import trace as view
    from dsv4kv.view.plots import to_svg_file
    from dsv4kv.view.render import show

    drafts, config = _names(speculation), find_model(model)
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
        capacities_tokens=_capacities(capacity, prefix_costs(config).token_bytes),
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
            whole = {
                "--strategy": question.strategies,
                "--rule": question.rules,
                "--policy": question.policies,
                "--host": question.host_bytes,
                "--block-tokens": question.block_tokens,
            }
            for name in (name for name, value in whole.items() if value):
                raise ConfigError(
                    f"{name} needs whole prompts, and --memory {memory} keeps some of their "
                    "blocks: leave one of them out."
                )
            batches = read_batches(source, trace_format, options)
            answer = measure_stream(batches, question, parse_bytes(memory))
        else:
            table = load_paths(source, trace_format, options)
    if not memory:
        with _watch("measuring", "steps") as watcher:
            answer = measure_trace(table, question, watcher.reach, jobs)
    if csv:
        write_named(csv, view.to_csv(answer), "--csv")
    if chart:
        write_named(chart, to_svg_file(view.hits_chart(config.name, answer)), "--chart")
    if as_json:
        print_document(view.to_json(source, config.name, answer))
    else:
        page = view.mrc_page(source, config.name, answer)
        show(page.in_full() if verbose else page.answer)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _capacities(text: str | None, token_bytes: Fraction) -> tuple[int, ...]:
    """Capacities in tokens, rising; sizes end in B."""
    sizes = (
        int(parse_bytes(one) / token_bytes) if one.upper().endswith("B") else parse_count(one)
        for one in _names(text)
    )
    return tuple(sorted(sizes))


# ---- synth

_SHAPE = (
    "tree: independent prompts that begin with text from a tree of shared prefixes. chat: "
    "conversations over one system prompt, each turn extending the last."
)


@app.command(
    epilog=examples(
        "dsv4kv trace synth docs.jsonl.gz --requests 1000 --prefix-branches 8",
        "dsv4kv trace synth chat.jsonl --shape chat",
    )
)
def synth(
    context: typer.Context,
    out: Annotated[Path, argument(_LINES, "OUT", show_default=True)],
    shape: Annotated[Literal["tree", "chat"], option(_SHAPE)] = "tree",
    seed: Annotated[int, option("Seed: the same one, the same trace.", min=0)] = 0,
    conversations: Annotated[
        int, option("Conversations.", min=1, max=1_000_000, panel="Shape chat")
    ] = 12,
    requests: Annotated[int, option("Requests.", min=1, max=10_000_000, **_TREE)] = 64,
    input_mean: Annotated[
        int, option("Mean prompt (log-normal), in tokens.", min=1, **_TREE)
    ] = 1024,
    input_max: Annotated[
        int, option("Cut prompts to this many tokens.", rare=True, min=1, max=2**31 - 1, **_TREE)
    ] = _CUT_TOKENS,
    output_mean: Annotated[
        int, option("Mean output (log-normal), in tokens.", min=1, max=_CUT_TOKENS, **_TREE)
    ] = 128,
    arrival_rate: Annotated[
        float | None,
        option("Poisson arrivals per second.", show_default="all wait from the start", **_TREE),
    ] = None,
    prefix_branches: Annotated[
        int, option("Children of each prefix; 0 shares nothing.", min=0, max=1_000_000, **_TREE)
    ] = 0,
    prefix_depth: Annotated[
        int, option("Levels of the prefix tree.", rare=True, min=1, max=10_000, **_TREE)
    ] = 2,
    prefix_tokens: Annotated[
        int, option("Tokens that a level adds.", min=1, max=2**31 - 1, **_TREE)
    ] = 512,
    hash_block_tokens: Annotated[
        int, option("Tokens one prefix hash stands for.", rare=True, min=1, max=2**31 - 1, **_TREE)
    ] = 512,
) -> None:
    """Make a trace; the same options and seed make the same file."""
    from dsv4kv.config.bench import Lengths, Synthetic
    from dsv4kv.traces import write_trace
    from dsv4kv.traces.synth import chat_trace, synthesize

    for other in _SHAPES.keys() - {shape}:
        for name in _SHAPES[other].split():
            origin = context.get_parameter_source(name)
            if origin is not None and origin.name == "COMMANDLINE":
                spelt = name.replace("_", "-")
                raise typer.BadParameter(f"--{spelt} belongs to --shape {other}, not {shape}")
    if input_mean > input_max:
        raise typer.BadParameter(f"--input-mean {input_mean} is above --input-max {input_max}")
    if arrival_rate is not None and not 1e-6 <= arrival_rate <= 1e6:
        raise typer.BadParameter(
            f"--arrival-rate {arrival_rate}: give requests per second, from 0.000001 to 1,000,000"
        )
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
