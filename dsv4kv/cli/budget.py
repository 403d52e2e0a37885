"""``dsv4kv budget``: which contexts and loads fit on which GPUs, and what they cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsv4kv.cli import budget_options as options
from dsv4kv.cli.console import open_console, print_document, say

if TYPE_CHECKING:
    from dsv4kv.sizing.answer import Answer
    from dsv4kv.sizing.reuse import Reuse
    from dsv4kv.sizing.sweep import Row

EPILOG = """\
[bold]Examples[/bold]

dsv4kv budget --gpu h200 --gpus 8                           what fits on eight H200

dsv4kv budget --model v4-pro --context 128K --concurrency 64    how many GPUs that takes

dsv4kv budget --gpus 8 --engine vllm --context 1M           what vLLM will print

dsv4kv budget --gpus 8 --axis context=4K,32K,128K,1M --axis gpu=h200,b200 --chart fits.svg
"""


def budget(
    arguments: typer.Context,
    logs: options.Logs = None,
    model: options.Model = None,
    context: options.Context = None,
    concurrency: options.Concurrency = None,
    engine: options.EngineName = None,
    gpu: options.Gpu = None,
    hbm: options.Hbm = None,
    gpus: options.Gpus = None,
    tp: options.Tp = None,
    dp: options.Dp = None,
    pp: options.Pp = None,
    ep: options.Ep = None,
    memory_fraction: options.MemoryFraction = None,
    reserve: options.Reserve = None,
    weights: options.Weights = None,
    weight_bytes_per_param: options.WeightBytes = None,
    block_tokens: options.BlockTokens = None,
    main_format: options.MainFormat = None,
    window_format: options.WindowFormat = None,
    indexer_format: options.IndexerFormat = None,
    state: options.State = None,
    draft_layers: options.DraftLayers = None,
    draft_tokens: options.DraftTokens = None,
    in_flight_tokens: options.InFlightTokens = None,
    axis: options.Axes = None,
    verbose: options.Verbose = False,
    json_: options.AsJson = False,
    csv: options.Csv = None,
    chart: options.ChartFile = None,
    explain: options.Explain = None,
) -> None:
    """Say what fits: contexts and loads on GPUs, GPUs for a load, or what to change.

    Splits every answer into what a request costs whatever its length, what every token of context
    costs, and what a step needs for a moment. Memory is binary (1 GiB = 2^30 B), and so are
    counts (1M = 1,048,576). Ends with 1 if what was asked does not fit, in a sweep if anything of
    it does not, with --explain if a log is of a start that was refused.
    """
    from dsv4kv.errors import ConfigError
    from dsv4kv.sizing.inputs import READERS

    if explain:
        from dsv4kv.cli.budget_explain import explain as explain_logs

        _end(fits=explain_logs([*explain, *(logs or [])], json_))
        return
    if logs:
        raise ConfigError(f"{logs[0]}: give a log to explain as --explain {logs[0]}.")
    given = {name: arguments.params[name.replace("-", "_")] for name in READERS}
    texts = {name: text for name, text in given.items() if text is not None}
    if axis:
        _tell_sweep(texts, axis, as_json=json_, csv=csv, chart=chart)
    elif csv or chart:
        raise ConfigError("--csv and --chart tell a sweep: add --axis context=4K,32K,128K,1M.")
    else:
        _tell_answer(texts, as_json=json_, verbose=verbose)


def _tell_answer(texts: dict[str, str], *, as_json: bool, verbose: bool) -> None:
    from dsv4kv.sizing.answer import answer, options_of
    from dsv4kv.sizing.compare import compare_layouts, curve
    from dsv4kv.sizing.inputs import read_inputs

    found = answer(read_inputs(texts))
    details = (
        options_of(found),
        compare_layouts(found.scenario, found.context),
        curve(found.scenario),
        _reuse(found) if as_json or verbose else None,
    )
    if as_json:
        from dsv4kv.sizing.document import to_document

        _print_json(to_document(found, *details))
    else:
        from dsv4kv.cli.budget_view import view_answer

        console = open_console()
        for part in view_answer(found, *details, given=texts, verbose=verbose):
            console.print(part, markup=False, highlight=False)
    _end(fits=found.fits)


def _end(*, fits: bool) -> None:
    """End with the verdict, for scripts."""
    from dsv4kv.errors import DoesNotFit

    if not fits:
        raise typer.Exit(DoesNotFit.exit_code)


def _reuse(found: "Answer") -> "Reuse | None":
    from dsv4kv.sizing.reuse import reuse_of

    return reuse_of(found.scenario, found.context)


def _tell_sweep(
    texts: dict[str, str],
    axes: list[str],
    *,
    as_json: bool,
    csv: Path | None,
    chart: Path | None,
) -> None:
    from dsv4kv.files import write_named
    from dsv4kv.sizing.sweep import parse_axis, run_sweep, to_values, write_csv

    rows = run_sweep(texts, [parse_axis(text) for text in axes])
    if csv:
        write_named(csv, write_csv(rows), "--csv")
    if chart:
        write_named(chart, _draw(chart, rows), "--chart")
    if as_json:
        _print_json([to_values(row) for row in rows])
    else:
        from dsv4kv.cli.budget_sweep import view_sweep

        console = open_console()
        for part in view_sweep(rows):
            console.print(part, markup=False, highlight=False)
    for path in filter(None, (csv, chart)):
        say(f"written: {path}", err=as_json)
    _end(fits=all(row.fits for row in rows))


def _draw(path: Path, rows: "list[Row]") -> str:
    from dsv4kv.errors import ConfigError
    from dsv4kv.sizing.sweep_chart import draw_page, draw_sweep

    draw = {".svg": draw_sweep, ".html": draw_page}.get(path.suffix.lower())
    if draw is None:
        raise ConfigError(f"--chart {path}: name a file that ends in .svg or .html.")
    return draw(rows)


def _print_json(document: Any) -> None:
    import json

    print_document(json.dumps(document, indent=2))
