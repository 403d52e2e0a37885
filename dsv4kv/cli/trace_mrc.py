"""``dsv4kv trace mrc``: what a trace hits by capacity, and what the rules of V4 leave of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.cli.console import open_console, print_document
from dsv4kv.cli.trace_options import Fields, Format, IdTokens, Stagger, TimeUnit, read_options

if TYPE_CHECKING:
    from dsv4kv.prefix.analysis.costs import PrefixCosts

EPILOG = (
    "Example: [cyan]dsv4kv trace mrc conversation_trace.jsonl --capacity 9358848 "
    "--rule vllm-v4:dense,vllm-v4:semantic[/cyan]"
)
_STRATEGIES = "periodic:4096,zero,zero:bounded,ends+junctions"


def _ask(metavar: str, text: str) -> Any:
    return typer.Option(help=text, metavar=metavar)


def _output(text: str) -> Any:
    return typer.Option(help=text, metavar="FILE", rich_help_panel="Output")


_STRATEGY = (
    "What is kept of windows and states: full, periodic:TOKENS, zero, zero:bounded, ends, "
    "ends+junctions, or none; commas between."
)
_RULE = (
    "Engines' rules, replayed at every capacity: ideal, vllm, sglang, vllm-v4:dense, "
    "vllm-v4:4096, vllm-v4:semantic, sglang-v4:dense, sglang-v4:tail, or all. Exact for vLLM 0.33 "
    "and SGLang 0.5.23, whose defaults are vllm-v4:semantic and sglang-v4:tail."
)
_SPECULATION = (
    "How the engines draft, for every rule: none, dspark, mtp, mtp+connector (MTP where a KV "
    "connector is set), commas between. It changes what hits."
)
_POLICY = (
    "Other eviction policies, simulated at every capacity: lru, fifo, lfu, lfu-aged, gdsf, sieve, "
    "s3fifo, arc, belady."
)
_SAMPLE = (
    "Simulate policies on this share of the prompt families (0.2), with an interval for every "
    "number; 1 simulates everything. Left out: a sample only where the whole would take long."
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
        str, _ask("NAME|FILE", "Whose cache: v4-flash, v4-pro, or a Hugging Face config.json.")
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
            "cache (100GiB), commas between. Left out: ten that tell the curve.",
        ),
    ] = None,
    strategy: Annotated[str, _ask("NAMES", _STRATEGY)] = _STRATEGIES,
    rule: Annotated[str | None, _ask("NAMES", _RULE)] = None,
    speculation: Annotated[str, _ask("NAMES", _SPECULATION)] = "none",
    policy: Annotated[str | None, _ask("NAMES", _POLICY)] = None,
    sample: Annotated[float | None, _ask("SHARE", _SAMPLE)] = None,
    chunk_tokens: Annotated[
        str, _ask("TOKENS", "Tokens of a prompt computed at once (max_num_batched_tokens).")
    ] = "8192",
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
    """Tell the prefix hit rate of a trace by cache capacity, exactly, and why hits are lost.

    A hit ends at the first block that is not cached. What is cached is useful only if window and
    compressor state are there too: strategies say what is kept of them, rules what engines do.
    """
    from dsv4kv.cli import trace_mrc_files as files
    from dsv4kv.files import write_named
    from dsv4kv.prefix.analysis.costs import prefix_costs
    from dsv4kv.prefix.analysis.mrc import Question, measure_trace
    from dsv4kv.prefix.analysis.rules import RULES
    from dsv4kv.sizing.lookup import find_model
    from dsv4kv.units import parse_count
    from dsv4kv.workload.traces.collect import load_paths

    drafts = _names(speculation)
    every = (name for name, known in RULES.items() if set(drafts) <= set(known.speculations))
    options = read_options(fields, time_unit, id_tokens, stagger)
    config = find_model(model)
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
        sample=sample,
    )
    answer = measure_trace(load_paths(source, trace_format, options), question)
    if csv:
        write_named(csv, files.to_csv(answer), "--csv")
    if chart:
        write_named(chart, files.draw_answer(source, config.name, answer), "--chart")
    if as_json:
        print_document(files.to_json(source, config.name, answer))
        return
    from dsv4kv.cli.trace_mrc_view import show_answer

    console = open_console()
    for part in show_answer(source, config.name, answer):
        console.print(part)


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
