"""``dsv4kv trace``: look at serving traces, convert them, make new ones."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import typer

from dsv4kv import files
from dsv4kv.choices import STRATEGIES, TRACE_FORMATS, TRACE_LINES, explained, listed
from dsv4kv.cli import command, group
from dsv4kv.cli import options as opt
from dsv4kv.core.policies import OFFLINE_POLICIES, POLICIES
from dsv4kv.engines.names import RULES
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.errors import TraceError
from dsv4kv.units import UNITS_PER_SECOND, parse_bytes, parse_count
from dsv4kv.view.console import print_document, say

if TYPE_CHECKING:
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
    WrittenName = Literal[*TRACE_LINES]

app = group("trace", "dsv4kv trace info builtin:chat")

_YEAR_S = 365 * 86_400
_SHORT_S = 1.0  # shorter work draws no bar
_PARALLEL_BYTES = 2**22  # of less, starting processes takes longer than tokenizing
_STRATEGIES = "periodic:4096,zero,zero:bounded,ends+junctions"

# ---- options of several commands

_SOURCE = (
    "A trace file, plain or gzip, a folder of weka conversations, or [bold]builtin:chat[/bold]."
)
_LINES = "File to write, as JSON lines; compressed if it ends in .gz."
_FIELDS = (
    "Names of a timed trace's fields: time, prompt length, output length and, if it has them, "
    "block ids."
)
READING = {
    "fields": opt.Row(
        _FIELDS, "T,IN,OUT[,IDS]", "timestamp,input_length,output_length,hash_ids", rare=True
    ),
    "time_unit": opt.Row(
        f"Unit of a timed trace: {listed(UNITS_PER_SECOND)}.",
        "UNIT",
        "s",
        kind=UnitName,
        rare=True,
    ),
    "id_tokens": opt.Row(
        "Tokens per id of a timed trace.", "TOKENS", kind=int, rare=True, bounds=(1, None)
    ),
    "stagger": opt.Row(
        "Seconds between the starts of a weka folder's conversations.",
        "SECONDS",
        "0",
        kind=float,
        rare=True,
        bounds=(0, _YEAR_S),
    ),
}
"""Options of commands that read a trace."""

SOURCE = opt.required(_SOURCE, "SOURCE")
OUT_FILE = opt.required(_LINES, "OUT", callback=opt.to_other)
TO = opt.option(f"{explained(TRACE_LINES)}.", "FORMAT", "--to", default="dsv4kv")
_FORMAT = f"Format of SOURCE; auto looks at its first line: {listed(TRACE_FORMATS)}."
FORMAT = opt.option(_FORMAT, "FORMAT", "--format", default="auto")


def _read_options(given: dict[str, Any], **more: Any) -> "ReadOptions":
    """Options of ``READING``, checked; ``more`` are other fields of ``ReadOptions``."""
    from dsv4kv.traces.files import ReadOptions, TimedFields

    fields, stagger, id_tokens = (given.get(name) for name in ("fields", "stagger", "id_tokens"))
    names = fields.split(",") if fields else []
    if fields and (len(names) not in {3, 4} or not all(names)):
        raise typer.BadParameter(f"--fields {fields}: give three or four names, commas between")
    unit = given.get("time_unit") or "s"
    return ReadOptions(TimedFields(*names), unit, id_tokens, stagger or 0.0, **more)


@contextmanager
def _watched_reading(name: str) -> "Iterator[Watch]":
    with opt.watch(name, "MiB", after_s=_SHORT_S) as watcher:
        yield lambda done, total: watcher.reach(done >> 20, total >> 20)


# ---- info and convert


@command("trace info", "dsv4kv trace info builtin:chat")
@opt.takes(READING)
def info(
    given: dict[str, Any],
    source: str = SOURCE,
    trace_format: FormatName = FORMAT,
    as_json: bool = opt.AS_JSON,
) -> None:
    """Say what a trace asks for: requests, lengths, and how much of its prompts repeats."""
    from dsv4kv import traces
    from dsv4kv.record.convert import read_recording
    from dsv4kv.record.folder import is_recording
    from dsv4kv.record.server import describe_breaks, read_server
    from dsv4kv.traces.paths import batches_of
    from dsv4kv.view.trace import describe_trace

    about: dict[str, Any] = {"source": source}
    breaks: list[str] = []
    if is_recording(folder := Path(source)):
        recorded, breaks = read_recording(folder), describe_breaks(read_server(folder))
        name, stores = "recording", recorded.stores_only
        about |= {"format": name, "breaks": breaks}
        batches = batches_of(recorded.requests)
        summary = traces.summarize_batches(batches, lambda number: f"{source}: request {number}")
    else:
        path = traces.resolve_trace(source)
        name = traces.detect_format(path) if trace_format == "auto" else trace_format
        stores = traces.is_stores_only(path)
        options = _read_options(given, stores=stores)
        with _watched_reading(f"reading {source}") as watch:
            requests = traces.read_trace(path, name, replace(options, watch=watch))
            summary = traces.summarize_batches(
                batches_of(requests), lambda number: traces.place_of(number, path, name, options)
            )
        about |= {"format": name, "sha256": traces.trace_sha256(path)}
    about |= asdict(summary)
    about |= {"stores_only": True} if stores else {"hit_share": summary.hit_share}
    parts = [f"{source} ({name})", *describe_trace(summary, stores=stores), *breaks]
    opt.tell(parts, about, as_json=as_json)


@command(
    "trace convert",
    "dsv4kv trace convert trace.jsonl first.jsonl.gz --limit 1000",
    "dsv4kv trace convert recording trace.jsonl.gz",
)
@opt.takes(READING)
def convert(
    given: dict[str, Any],
    source: str = SOURCE,
    out: Path = OUT_FILE,
    trace_format: FormatName = FORMAT,
    skip: int = opt.rare("Requests to skip at the start.", min=0, default=0),
    limit: int | None = opt.option("Max requests to write.", min=1, shown="all"),
    sort: bool = opt.flag("--sort", "Sort by arrival; equal times keep their order.", rare=True),
    to: WrittenName = TO,
) -> None:
    """Write a trace, or a part of it, in another format; arrival times are kept.

    A recording becomes a trace of its requests; without a source of them, of what was stored.
    """
    from dsv4kv.record.convert import describe, in_blocks, read_recording
    from dsv4kv.record.folder import is_recording
    from dsv4kv.record.server import describe_breaks, read_server
    from dsv4kv.traces import formats, is_stores_only, place_of, read_trace, summary

    _check_out(out)
    if Path(source).is_dir() and Path(source).resolve() in out.resolve().parents:
        raise TraceError(
            f"{out} is inside {source}, whose files are the trace: name one outside of it."
        )
    stop = None if limit is None else skip + limit
    if is_recording(Path(source)):
        recorded = read_recording(Path(source))
        part: Iterable[Request] = recorded.requests[skip:stop]
        if to.startswith("mooncake"):
            part = in_blocks(part, formats.BLOCK_TOKENS)
        _write(part, out, to, stores=recorded.stores_only)
        for sentence in [*describe(recorded), *describe_breaks(read_server(Path(source)))]:
            say(sentence)
        return
    stores = is_stores_only(Path(source))
    options = _read_options(given, any_order=sort, stores=stores)

    def check(requests: "Iterator[Request]", first: int) -> "Iterator[Request]":
        return summary.check_histories_of(
            requests,
            lambda number: place_of(first + number, source, trace_format, options),
        )

    with _watched_reading(f"converting {source}") as watch:
        requests = read_trace(source, trace_format, replace(options, watch=watch))
        if sort:
            ordered = sorted(check(requests, 0), key=lambda request: request.arrival_s)
            chosen: Iterator[Request] = islice(ordered, skip, stop)
        else:
            chosen = check(islice(requests, skip, stop), skip)
        _write(chosen, out, to, stores=stores)


def _check_out(out: Path) -> None:
    try:
        files.check_file(out)
    except OSError as error:
        raise TraceError(f"{out}: cannot be written ({error.strerror or error}).") from None


def _write(requests: "Iterable[Request]", out: Path, to: str, *, stores: bool) -> None:
    from dsv4kv.traces import write_trace

    say(f"{out}: {write_trace(requests, out, to, stores=stores):,} requests written")


# ---- tokenize

_CONVERSATIONS = (
    "Conversations (ShareGPT's, OpenAI's messages) or prompts, as JSON lines or one JSON array, "
    "or lines of text; plain or gzip."
)
_TOKENIZER = "A model's folder, with its tokenizer.json; or such a file. Never downloaded."
_TEMPLATE = "Jinja file; a file in .py is run: DeepSeek's encoding_dsv4.py."
_TEMPLATE_OPTIONS = "Options of the template, such as '{\"enable_thinking\": false}'."
_DEFECTS = "Skip and count records that cannot be read; else the first ends it."
_UNANSWERED = "Output tokens of requests that the data has no answer to."
_RATE = "Conversations that begin in a second (Poisson), if no time is given."
_GAP = "Mean time between turns (exponential), in seconds."
_FIELD = "Field of records, or of messages, that says when they were sent: ISO 8601, or a number."
_UNIT = f"Unit of numbers: {listed(UNITS_PER_SECOND)}."
_SALT = "Salt for block ids (16–64 bytes); reuse it, or a recording's, to get identical ids."
_PROCESSES: dict[str, Any] = {"min": 1, "max": 1024, "shown": "one for every core"}


@command(
    "trace tokenize", "dsv4kv trace tokenize sharegpt.json t.jsonl.gz --tokenizer DeepSeek-V3"
)
def tokenize(
    data: Path = opt.required(_CONVERSATIONS, "DATA"),
    out: Path = OUT_FILE,
    tokenizer: Path = opt.option(_TOKENIZER, "DIR", default=...),
    template: opt.Text = opt.option(_TEMPLATE, "FILE", "--chat-template", shown="the tokenizer's"),
    template_options: str = opt.rare(_TEMPLATE_OPTIONS, "JSON", default="{}"),
    text: bool = opt.flag("--text", "Every line is a prompt, whatever it looks like.", rare=True),
    skip: bool = opt.flag("--skip-defects", _DEFECTS, rare=True),
    output_tokens: int = opt.rare(_UNANSWERED, min=0, default=0),
    rate: float = opt.rare(_RATE, min=1e-6, max=1e6, default=1.0),
    gap: float = opt.rare(_GAP, min=1e-6, max=1e6, default=20.0),
    time_field: opt.Text = opt.rare(_FIELD, "NAME"),
    time_unit: UnitName = opt.rare(_UNIT, "UNIT", default="s"),
    seed: int = opt.rare("Seed of the times.", min=0, default=0),
    block_tokens: int = opt.rare("Tokens per id.", min=1, default=64),
    salt: Path | None = opt.rare(_SALT, "FILE", shown="random"),
    to: WrittenName = TO,
    processes: int | None = opt.rare("Processes.", **_PROCESSES),
) -> None:
    """Make a trace of conversations or prompts: lengths, sessions and ids of blocks of tokens.

    Every answer of the assistant is a request. Its prompt is what comes before, as the chat
    template writes it, so turns share what a server could reuse. No text and no token is written.
    """
    from dsv4kv.processes import usable_cores
    from dsv4kv.record import convert
    from dsv4kv.record import tokenize as made
    from dsv4kv.traces.formats import BLOCK_TOKENS

    _check_out(out)
    options = _object(template_options, "--template-options")
    job = made.Job(tokenizer, made.read_salt(salt), template, options, block_tokens)
    counts = made.Counts()
    large = data.is_file() and data.stat().st_size >= _PARALLEL_BYTES
    count = processes or (usable_cores() if large else 1)
    with _watched_reading(f"tokenizing {data}") as watch:
        dialogues = made.read_dialogues(
            data, text=text, time=time_field, time_unit=time_unit, skip=skip, watch=watch
        )
        requests = made.arrange(
            made.tokenize(dialogues, job, count),
            counts,
            rate=rate,
            gap_s=gap,
            seed=seed,
            block_tokens=block_tokens,
            output_tokens=output_tokens,
            skip=skip,
        )
        if to.startswith("mooncake"):
            requests = convert.in_blocks(requests, BLOCK_TOKENS)
        _write(requests, out, to, stores=False)
    for sentence in made.describe(counts, output_tokens):
        say(sentence)


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        value = files.parse_json(text)
    except files.Unparsable as error:
        raise typer.BadParameter(f"{name} {text}: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{name} {text}: give a JSON object")
    return value


# ---- mrc

_BLOCK = "Tokens of a block."
_CAPACITY = (
    "Capacities of the cache, in tokens of context (9358848, 16M) or bytes of compressed cache "
    "(100GiB), commas between."
)
_STRATEGY = f"Where windows and states are kept: {listed(STRATEGIES)}, or none; commas between."
_RULE = (
    f"Engines' rules, replayed at every capacity: {listed(RULES)}, or all. Exact for vLLM 0.33 "
    "and SGLang 0.5.23, whose defaults are vllm-v4:semantic and sglang-v4:tail."
)
_SPECULATION = (
    f"How the engines draft, for every rule: {listed(SPECULATIONS)} (MTP where a KV connector is "
    "set), commas between. It changes what hits."
)
_POLICY = f"Eviction policies, at every capacity: {listed(POLICIES | OFFLINE_POLICIES)}."
_CURVES = "Draw the curves: .svg or .html."
_CHUNK = "Tokens of a prompt computed in one step (max_num_batched_tokens)."


@command(
    "trace mrc",
    "dsv4kv trace mrc builtin:chat                            hits by capacity",
    "dsv4kv trace mrc builtin:chat --capacity 1M --rule all   by engines' rules",
)
@opt.takes(READING)
def mrc(
    given: dict[str, Any],
    source: str = opt.required(f"With block ids: {_SOURCE}", "SOURCE"),
    model: str = opt.MODEL,
    block_tokens: opt.Text = opt.rare(_BLOCK, "TOKENS", shown="the trace's; for rules 256"),
    capacity: opt.Text = opt.option(_CAPACITY, "SIZES", shown="ten that show the curve"),
    strategy: str = opt.option(_STRATEGY, "NAMES", default=_STRATEGIES),
    rule: opt.Text = opt.option(_RULE, "NAMES", values=RULES),
    speculation: str = opt.rare(_SPECULATION, "NAMES", default="none"),
    policy: opt.Text = opt.rare(_POLICY, "NAMES"),
    jobs: int = opt.rare("Processes for the rules.", "N", "--jobs", "-j", min=1, default=1),
    chunk_tokens: str = opt.rare(_CHUNK, "TOKENS", default="8192"),
    gpu: str = opt.rare(opt.GPU, "NAME", default="h200"),
    trace_format: FormatName = opt.rare(_FORMAT, "FORMAT", "--format", default="auto"),
    as_json: bool = opt.AS_JSON,
    verbose: bool = opt.VERBOSE,
    chart: Path | None = opt.option(_CURVES, "FILE", callback=opt.to_chart),
) -> None:
    """Print the prefix hit rate of a trace by cache capacity, exactly, and why hits are lost.

    A hit ends at the first block that is not cached. Cached blocks are useful only if window and
    compressor state are there too: strategies say what is kept of them, rules what engines do.
    """
    from dsv4kv.budget import gpus, scenario
    from dsv4kv.replay.mrc import Question, measure_trace, prefix_costs
    from dsv4kv.traces import load_paths
    from dsv4kv.view import trace as view
    from dsv4kv.view.html import write_chart

    drafts, config = tuple(opt.split(speculation)), scenario.find_model(model)
    token_bytes = prefix_costs(config).token_bytes
    sizes = (
        int(parse_bytes(one) / token_bytes) if one.upper().endswith("B") else parse_count(one)
        for one in opt.split(capacity)
    )
    every = (
        name
        for name, known in RULES.items()
        if set(drafts) <= set(known.drafts) and config.kind in known.kinds
    )
    question = Question(
        model=config,
        block_tokens=parse_count(block_tokens) if block_tokens else None,
        capacities_tokens=tuple(sorted(sizes)),
        strategies=() if strategy == "none" else tuple(opt.split(strategy)),
        rules=tuple(every if rule == "all" else opt.split(rule)),
        speculations=drafts,
        policies=tuple(opt.split(policy)),
        chunk_tokens=parse_count(chunk_tokens),
        arch=gpus.load_gpu(gpu).arch,
    )
    with _watched_reading(f"reading {source}") as watch:
        table = load_paths(source, trace_format, _read_options(given, watch=watch))
    with opt.watch("measuring", "steps", after_s=_SHORT_S) as watcher:
        answer = measure_trace(table, question, watcher.reach, jobs)
    page = view.mrc_page(source, config.name, answer)
    if chart:
        write_chart(chart, page.made_now())
    if as_json:
        print_document(view.to_json(source, config.name, answer))
    else:
        opt.show_page(page, verbose=verbose)


# ---- synth

_SHAPE = (
    "tree: independent prompts that begin with text from a tree of shared prefixes. chat: "
    "conversations over one system prompt, each turn extending the last."
)
_CHAT: dict[str, Any] = {"panel": "Shape chat", "min": 1}
_SHAPED = "Change a setting of the tree (workload.synthetic); repeatable."


@command(
    "trace synth",
    "dsv4kv trace synth docs.jsonl.gz --set requests=1000 --set prefix_branches=8",
    "dsv4kv trace synth chat.jsonl --shape chat",
)
def synth(
    out: Path = opt.required(_LINES, "OUT"),
    shape: Literal["tree", "chat"] = opt.option(_SHAPE, default="tree"),
    set_: opt.Texts = opt.option(_SHAPED, "KEY=VALUE", "--set"),
    seed: int = opt.rare("Seed: the same one, the same trace.", min=0, default=0),
    conversations: int | None = opt.rare("Conversations.", max=1_000_000, shown="12", **_CHAT),
) -> None:
    """Make a trace; the same options and seed make the same file."""
    from dsv4kv.config.load import load_config
    from dsv4kv.traces import write_trace
    from dsv4kv.traces.synth import chat_trace, synthesize

    if set_ if shape == "chat" else conversations:
        name, owner = ("--set", "tree") if shape == "chat" else ("--conversations", "chat")
        raise typer.BadParameter(f"{name} belongs to --shape {owner}, not {shape}")
    settings = [f"workload.synthetic.{each}" for each in set_ or []]
    tree = load_config(None, settings).config.workload.synthetic
    made = chat_trace(conversations or 12, seed) if shape == "chat" else synthesize(tree, seed)
    say(f"{out}: {write_trace(made, out):,} requests written")
