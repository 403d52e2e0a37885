"""``dsv4kv trace``: look at serving traces, convert them, make new ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dsv4kv.cli.console import print_document, say
from dsv4kv.cli.trace_mrc import EPILOG, mrc
from dsv4kv.cli.trace_options import Fields, Format, IdTokens, Stagger, TimeUnit, read_options

if TYPE_CHECKING:
    from rich.table import Table

    from dsv4kv.workload.request import Request
    from dsv4kv.workload.traces import TraceSummary

app = typer.Typer(
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
_TO = (
    "dsv4kv: the toolkit's own format. mooncake: ids of 512 tokens. mooncake-delta: turns of a "
    "session tell what is new; sessions are found by what prompts begin with. timed: times in s; "
    "read it with --format timed --id-tokens N. weka: a folder of conversations, found likewise. "
    "oracle: libCacheSim's oracleGeneral, a record for every block reference, a prompt's blocks "
    "last to first."
)
_CUT_TOKENS = 131_072  # where synthetic lengths are cut unless told otherwise
_SHAPES = {
    "tree": "requests input_mean input_max output_mean arrival_rate "
    "prefix_branches prefix_depth prefix_tokens hash_block_tokens",
    "chat": "conversations",
}


def _option(shape: str, text: str, low: int = 1, high: int | None = None) -> Any:
    return typer.Option(min=low, max=high, help=text, rich_help_panel=f"Shape {shape}")


@app.command(epilog="Example: [cyan]dsv4kv trace info builtin:chat[/cyan]")
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
    from rich.console import Console

    from dsv4kv.workload.traces import (
        detect_format,
        read_batches,
        resolve_trace,
        summarize_batches,
    )
    from dsv4kv.workload.traces.collect import place_of

    path = resolve_trace(source)
    name = detect_format(path) if trace_format == "auto" else trace_format
    options = read_options(fields, time_unit, id_tokens, stagger)
    summary = summarize_batches(
        read_batches(path, name, options), lambda number: place_of(number, path, name, options)
    )
    if as_json:
        print_document(_as_json(source, name, path, summary))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{source} ({name})", markup=False)
    for line in _describe(summary):
        console.print(line)
    console.print(_length_table(summary))


@app.command(
    epilog="Example: [cyan]dsv4kv trace convert conversation_trace.jsonl first.jsonl.gz "
    "--limit 1000[/cyan]"
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
        Literal["dsv4kv", "mooncake", "mooncake-delta", "timed", "weka", "oracle"],
        typer.Option("--to", help=_TO),
    ] = "dsv4kv",
    fields: Fields = None,
    time_unit: TimeUnit = "s",
    id_tokens: IdTokens = None,
    stagger: Stagger = 0.0,
) -> None:
    """Write a trace, or a part of it, in another format; arrival times are kept."""
    from itertools import islice

    from dsv4kv.workload.traces import read_trace, write_oracle, write_trace, write_weka
    from dsv4kv.workload.traces.collect import place_of
    from dsv4kv.workload.traces.histories import check_histories_of

    options = read_options(fields, time_unit, id_tokens, stagger, any_order=sort)
    stop = None if limit is None else skip + limit

    def check(requests: "Iterator[Request]", first: int) -> "Iterator[Request]":
        return check_histories_of(
            requests, lambda number: place_of(first + number, source, trace_format, options)
        )

    requests = read_trace(source, trace_format, options)
    if sort:
        ordered = sorted(check(requests, 0), key=lambda request: request.arrival_s)
        chosen: Iterator[Request] = islice(ordered, skip, stop)
    else:
        chosen = check(islice(requests, skip, stop), skip)
    if to == "oracle":
        say(f"{out}: {write_oracle(chosen, out):,} block references written")
        return
    count = write_weka(chosen, out) if to == "weka" else write_trace(chosen, out, to)
    say(f"{out}: {count:,} requests written")


app.command("mrc", epilog=EPILOG)(mrc)


@app.command(
    epilog="Example: [cyan]dsv4kv trace synth docs.jsonl.gz --requests 1000 --arrival-rate 4 "
    "--prefix-branches 8[/cyan]"
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
    from dsv4kv.workload.chat import chat_trace
    from dsv4kv.workload.synth import synthesize
    from dsv4kv.workload.traces import write_trace

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


def _as_json(source: str, name: str, path: Path, summary: "TraceSummary") -> str:
    import json
    from dataclasses import asdict

    from dsv4kv.workload.traces import trace_sha256

    document: dict[str, Any] = {"source": source, "format": name, "sha256": trace_sha256(path)}
    return json.dumps(document | asdict(summary) | {"hit_share": summary.hit_share}, indent=2)


def _describe(summary: "TraceSummary") -> Iterator[str]:
    yield f"{summary.requests:,} requests over {summary.duration_s:,.1f} s"
    if summary.hit_share is None:
        yield "no prefix hashes: what its prompts share is not known"
        return
    yield (
        f"{summary.block_references:,} block references (prefix hashes) "
        f"to {summary.distinct_blocks:,} distinct blocks of {summary.hash_block_tokens:,} tokens"
    )
    yield f"{summary.hit_share:.2%} of references are prefix hits in a cache without bound"


def _length_table(summary: "TraceSummary") -> "Table":
    from rich import box
    from rich.table import Table

    table = Table("tokens", box=box.SIMPLE_HEAD)
    rows = {"prompt": summary.input_tokens, "output": summary.output_tokens}
    for column in rows:
        table.add_column(column, justify="right")
    for label in ("total", "mean", "p50", "p90", "p99", "max"):
        values = (
            lengths.total / summary.requests if label == "mean" else getattr(lengths, label)
            for lengths in rows.values()
        )
        table.add_row(label, *(f"{value:,.0f} tokens" for value in values))
    return table
