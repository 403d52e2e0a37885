"""``dsv4kv budget``: which contexts and loads fit on which GPUs, and what they cost."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.choices import SIZED_STATES, explained, families, listed
from dsv4kv.cli import Command
from dsv4kv.cli.targets import to_file
from dsv4kv.engines.names import ENGINES, HOST_TIERS
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.files import shipped_names
from dsv4kv.model.formats import Place, known_formats
from dsv4kv.view.console import print_document, say

if TYPE_CHECKING:
    from dsv4kv.sizing.answer import Answer
    from dsv4kv.sizing.launch import Reading
    from dsv4kv.sizing.reuse import Reuse
    from dsv4kv.sizing.sweep import Row


def _option(panel: str, metavar: str, text: str) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=panel)


_ask = partial(_option, "Question")
_gpu = partial(_option, "GPUs and layout")
_cache = partial(_option, "Cache")
_host = partial(_option, "Host memory")
_output = partial(_option, "Output")


def _entry(place: Place, what: str) -> Any:
    return _cache("NAME", f"{what}: {listed(known_formats(place))}.")


def _file(text: str) -> Any:
    return typer.Option(help=text, metavar="FILE", rich_help_panel="Output", callback=to_file)


def _flag(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Output")


_MODEL = (
    f"{listed(shipped_names('models'))} (left out: v4-flash), gqa8 (a baseline with 8 KV heads), "
    "or a Hugging Face config.json."
)
_CONTEXT = (
    "Tokens of every request: 128K, 1M. Left out: the model's limit, or the most that fit the "
    "concurrency."
)
_ENGINE = (
    f"Whose rules size the cache: {listed(families(ENGINES))} (left out: dsv4kv), or a version: "
    "vllm:0.33."
)
_STEP = "Tokens of one step, the prompt chunk. Left out: the engine's own, else 8192."
_IN_FLIGHT = "Tokens of the steps that overlap, all of them, instead of those two."
_LIMIT = "Requests that run at once at most. Left out: the engine's own."
_LOGITS = "Indexer logits are cut to it. Left out: the engine's own, else 512MiB."
_KV = "Memory of a GPU for KV, instead of what weights and reserve leave: 7.01GiB."
_BLOCKS = "Blocks of a GPU (SGLang: full tokens, at most), instead of its memory for KV."
_STATE = f"Compressor state: {explained(SIZED_STATES)}; left out: fp32."
_FRACTION = "Share of a GPU's memory that may be used. Left out: the engine's own, else 0.9."
_RESERVE = (
    "Kept on every GPU for activations, graphs, communication: left out, 4GiB, SGLang's 2.3GiB."
)
_TIER = f"What keeps prefixes in host memory: {explained(HOST_TIERS)}. Left out: nothing."
_RETENTION = (
    "Tokens between the windows that vLLM keeps of a prefix: 0 (left out) keeps only the last "
    "window, dense those of every block."
)
_EP = "Ranks of a stage that share the routed experts. Left out: all of them, with replicas."
_COMMAND = (
    "A launch command of vLLM, SGLang or TensorRT-LLM, or a file with one (script, YAML, "
    "compose): what its flags cost. Other options come on top."
)
_WHICH = "Which command of a file with several: its number, or a part of it."
_EXPLAIN = "Explain the sizes in a start-up log of vLLM or SGLang; two logs are compared."

Text = str | None
Logs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[LOG]", help="With --explain: a second log to compare with."),
]
Model = Annotated[Text, _ask("NAME|FILE", _MODEL)]
Context = Annotated[Text, _ask("TOKENS", _CONTEXT)]
Concurrency = Annotated[Text, _ask("N", "Requests at once. Left out: as many as fit.")]
EngineName = Annotated[Text, _ask("NAME", _ENGINE)]

LaunchCommand = Annotated[Text, _ask("TEXT|FILE", _COMMAND)]
Which = Annotated[Text, _ask("N|PART", _WHICH)]

Gpu = Annotated[Text, _gpu("NAME", f"{listed(shipped_names('gpus'))}; left out: h200.")]
Hbm = Annotated[Text, _gpu("SIZE", "Memory of a GPU instead: 141GiB.")]
Gpus = Annotated[Text, _gpu("N", "GPUs. Left out: the fewest that are enough.")]
Tp = Annotated[Text, _gpu("N", "Tensor parallel ranks; each holds the whole KV of its replica.")]
Dp = Annotated[Text, _gpu("N", "Data parallel replicas, each with requests of its own.")]
Pp = Annotated[Text, _gpu("N", "Pipeline stages, each with a share of the layers.")]
Ep = Annotated[Text, _gpu("N", _EP)]
MemoryFraction = Annotated[Text, _gpu("SHARE", _FRACTION)]
Reserve = Annotated[Text, _gpu("SIZE", _RESERVE)]
Weights = Annotated[Text, _gpu("SIZE", "Size of the checkpoint. Left out: derived.")]
WeightBytes = Annotated[Text, _gpu("BYTES", "Bytes of every parameter, instead of derived types.")]

BlockTokens = Annotated[Text, _cache("TOKENS", "Tokens of a block. Left out: the engine's own.")]
MainFormat = Annotated[Text, _entry("main", "Compressed entries")]
WindowFormat = Annotated[Text, _entry("window", "Window entries")]
IndexerFormat = Annotated[Text, _entry("indexer", "Indexer keys")]
State = Annotated[Text, _cache("NAME", _STATE)]
DraftLayers = Annotated[
    Text, _cache("N", "Draft (MTP) layers that hold a window: 0 unless given.")
]
DraftTokens = Annotated[
    Text, _cache("N", "Speculative tokens that may be rolled back: 0 unless given.")
]
StepTokens = Annotated[Text, _cache("TOKENS", _STEP)]
Overlap = Annotated[Text, _cache("N", "Steps that overlap. Left out: the engine's own, else 1.")]
InFlightTokens = Annotated[Text, _cache("TOKENS", _IN_FLIGHT)]
RequestLimit = Annotated[Text, _cache("N", _LIMIT)]
LogitsLimit = Annotated[Text, _cache("SIZE", _LOGITS)]
KvMemory = Annotated[Text, _cache("SIZE", _KV)]
KvBlocks = Annotated[Text, _cache("N", _BLOCKS)]

HostTier = Annotated[Text, _host("NAME", _TIER)]
HostRatio = Annotated[Text, _host("X", "Pages of the host for one of the GPU (hicache).")]
HostSize = Annotated[
    Text, _host("SIZE", "Memory that the tier is given, as its engine counts it.")
]
HostChunk = Annotated[Text, _host("TOKENS", "Tokens of a chunk (lmcache). Left out: 256.")]
Retention = Annotated[Text, _host("TOKENS", _RETENTION)]
HostMemory = Annotated[Text, _host("SIZE", "Free memory of a node: what an engine refuses by.")]

Axes = Annotated[
    list[str] | None,
    _output("NAME=A,B,…", "Sweep an option: context=4K,32K,128K; repeatable."),
]
Verbose = Annotated[bool, _flag("Print every pool, layout and option.", "--verbose", "-v")]
AsJson = Annotated[bool, _flag("Print one JSON document instead.", "--json")]
Csv = Annotated[Path | None, _file("Write a sweep as CSV.")]
ChartFile = Annotated[Path | None, _file("Draw a sweep: FILE.svg, or FILE.html with its table.")]
Explain = Annotated[list[Path] | None, _output("LOG", _EXPLAIN)]


_FLAGS = "flags"


class BudgetCommand(Command):
    """Understands the engines' flags next to our options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the engines' flags apart, for ``budget`` to read."""
        from dsv4kv.sizing.flags import take_flags

        ours = {spelling for option in self.params for spelling in option.opts}
        ctx.meta[_FLAGS], rest = take_flags(args, ours)
        return super().parse_args(ctx, rest)


COMMAND = BudgetCommand
EPILOG = """\
With --engine the engine's own flags are options, too: --max-num-batched-tokens, --page-size, …

[bold]Examples[/bold]

dsv4kv budget --gpu h200 --gpus 8                           what fits on eight H200

dsv4kv budget --model v4-pro --context 128K --concurrency 64    how many GPUs that takes

dsv4kv budget --gpus 8 --engine vllm --context 1M           what vLLM will print

dsv4kv budget --gpus 8 --axis context=4K,32K,128K,1M --axis gpu=h200,b200 --chart fits.svg
"""


def budget(
    arguments: typer.Context,
    logs: Logs = None,
    model: Model = None,
    context: Context = None,
    concurrency: Concurrency = None,
    engine: EngineName = None,
    command: LaunchCommand = None,
    which: Which = None,
    gpu: Gpu = None,
    hbm: Hbm = None,
    gpus: Gpus = None,
    tp: Tp = None,
    dp: Dp = None,
    pp: Pp = None,
    ep: Ep = None,
    memory_fraction: MemoryFraction = None,
    reserve: Reserve = None,
    weights: Weights = None,
    weight_bytes_per_param: WeightBytes = None,
    block_tokens: BlockTokens = None,
    main_format: MainFormat = None,
    window_format: WindowFormat = None,
    indexer_format: IndexerFormat = None,
    state: State = None,
    draft_layers: DraftLayers = None,
    draft_tokens: DraftTokens = None,
    step_tokens: StepTokens = None,
    overlap: Overlap = None,
    in_flight_tokens: InFlightTokens = None,
    request_limit: RequestLimit = None,
    logits_limit: LogitsLimit = None,
    kv_memory: KvMemory = None,
    kv_blocks: KvBlocks = None,
    host_tier: HostTier = None,
    host_ratio: HostRatio = None,
    host_size: HostSize = None,
    host_memory: HostMemory = None,
    host_chunk: HostChunk = None,
    retention: Retention = None,
    axis: Axes = None,
    verbose: Verbose = False,
    json_: AsJson = False,
    csv: Csv = None,
    chart: ChartFile = None,
    explain: Explain = None,
) -> None:
    """Say what fits: contexts and loads on GPUs, GPUs for a load, or what to change.

    Splits every answer into what a request costs whatever its length, what every token of context
    costs, and what a step needs for a moment. Memory is binary (1 GiB = 2^30 B), and so are
    counts (1M = 1,048,576). Ends with 1 if what was asked does not fit, in a sweep if anything of
    it does not, with --explain if a log is of a start that was refused.
    """
    from dsv4kv.sizing.inputs import READERS

    if explain:
        from dsv4kv.view.explain import explain as explain_logs

        _end(fits=explain_logs([*explain, *(logs or [])], json_))
        return
    if logs:
        raise ConfigError(f"{logs[0]}: give a log to explain as --explain {logs[0]}.")
    given = {name: arguments.params.get(name.replace("-", "_")) for name in READERS}
    texts = {name: text for name, text in given.items() if text is not None}
    reading = _read_command(texts, command, which)
    texts |= _read_flags(texts, arguments.meta.get(_FLAGS, []))
    if axis:
        _print_sweep(texts, axis, as_json=json_, csv=csv, chart=chart)
    elif csv or chart:
        raise ConfigError("--csv and --chart show a sweep: add --axis context=4K,32K,128K,1M.")
    else:
        _print_answer(texts, reading, as_json=json_, verbose=verbose)


def _read_command(
    texts: dict[str, str], command: str | None, which: str | None
) -> "tuple[Reading, dict[str, str]] | None":
    """A command, read, with what was given next to it; ``texts`` become both, the latter first."""
    if command is None:
        if which is not None:
            raise ConfigError("--which chooses a command of a file: add --command FILE.")
        return None
    from dsv4kv.sizing.launch import read_command

    given = dict(texts)
    reading = read_command(command, which, texts.get("model"))
    texts |= {name: text for name, text in reading.texts.items() if name not in given}
    return reading, given


def _read_flags(texts: dict[str, str], flags: list[tuple[str, str]]) -> dict[str, str]:
    """What the engine's flags mean; raises ``ConfigError`` for another engine's."""
    from dsv4kv.engines.flags import find_flag
    from dsv4kv.sizing.flags import merge, read_flag, wrong_engine

    family = texts.get("engine", "dsv4kv").partition(":")[0].lower()
    for spelling, _ in flags:
        if find_flag(family, spelling) is None:
            raise wrong_engine(family, spelling)
    read = [read_flag(family, spelling, value) for spelling, value in flags]
    found = merge(family, read)
    if twice := sorted(set(found) & set(texts)):
        spelling = next(each.spelling for each in read if twice[0] in each.texts)
        raise ConfigError(f"--{twice[0]} and {spelling} say the same: keep one.")
    return found


def _print_answer(
    texts: dict[str, str],
    command: "tuple[Reading, dict[str, str]] | None",
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    from dsv4kv.sizing.answer import answer, options_of
    from dsv4kv.sizing.fit import compare_layouts, curve
    from dsv4kv.sizing.inputs import read_inputs

    found = answer(read_inputs(texts))
    details = (
        options_of(found),
        compare_layouts(found.scenario, found.context),
        curve(found.scenario),
        _reuse(found) if as_json or verbose else None,
    )
    if as_json:
        from dataclasses import asdict

        from dsv4kv.sizing.answer import peak_of, to_document

        document = to_document(found, *details) | {"peak": asdict(peak_of(found))}
        if command:
            from dsv4kv.sizing.launch import command_document, flag_costs

            document["command"] = command_document(command[0], flag_costs(*command, found))
        _print_json(document)
    else:
        from dsv4kv.view.budget import view_answer, view_command
        from dsv4kv.view.terminal import show

        costs: Any = ()
        if command:
            from dsv4kv.sizing.launch import flag_costs

            costs = view_command(command[0], flag_costs(*command, found))
        show(view_answer(found, *details, given=texts, verbose=verbose, command=costs))
    _end(fits=found.fits)


def _end(*, fits: bool) -> None:
    """End with the verdict, for scripts."""
    if not fits:
        raise typer.Exit(DoesNotFit.exit_code)


def _reuse(found: "Answer") -> "Reuse | None":
    from dsv4kv.sizing.reuse import reuse_of

    return reuse_of(found.scenario, found.context)


def _print_sweep(
    texts: dict[str, str],
    axes: list[str],
    *,
    as_json: bool,
    csv: Path | None,
    chart: Path | None,
) -> None:
    from dsv4kv.files import write_named
    from dsv4kv.sizing.sweep import parse_axis, run_sweep, to_values
    from dsv4kv.view.markup import to_csv
    from dsv4kv.view.table import tabulate

    rows = run_sweep(texts, [parse_axis(text) for text in axes])
    if csv:
        write_named(csv, to_csv(tabulate([to_values(row) for row in rows])), "--csv")
    if chart:
        write_named(chart, _draw(chart, rows), "--chart")
    if as_json:
        _print_json([to_values(row) for row in rows])
    else:
        from dsv4kv.view.budget_sweep import view_sweep
        from dsv4kv.view.terminal import show

        show(view_sweep(rows))
    for path in filter(None, (csv, chart)):
        say(f"written: {path}", err=as_json)
    _end(fits=all(row.fits for row in rows))


def _draw(path: Path, rows: "list[Row]") -> str:
    from dsv4kv.view.budget_chart import draw_page, draw_sweep

    draw = {".svg": draw_sweep, ".html": draw_page}.get(path.suffix.lower())
    if draw is None:
        raise ConfigError(f"--chart {path}: name a file that ends in .svg or .html.")
    return draw(rows)


def _print_json(document: Any) -> None:
    import json

    print_document(json.dumps(document, indent=2))
