"""``dsv4kv budget``: which contexts and loads fit on which GPUs, and what they cost."""

import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.choices import SIZED_STATES, explained, families, listed
from dsv4kv.cli import Command, examples
from dsv4kv.cli.options import AsJson, Text, argument, flag, option, print_json, to_file
from dsv4kv.engines.names import ENGINES, HOST_TIERS
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.files import shipped_names, write_named
from dsv4kv.model.formats import known_formats
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.budget.advice import Option
    from dsv4kv.budget.answer import Answer
    from dsv4kv.budget.launch import Reading

_ask = partial(option, panel="Question")
_gpu = partial(option, panel="GPUs and layout")
_cache = partial(option, panel="Cache", rare=True)
_host = partial(option, panel="Host memory", rare=True)
_output = partial(option, panel="Output")
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
_COMMAND = (
    "A launch command of vLLM, SGLang or TensorRT-LLM, or a file with one (script, YAML, "
    "compose): what its flags cost. Other options come on top."
)
_WHICH = "Which command of a file with several: its number, or a part of it."
_EP = "Ranks of a stage that share the routed experts. Left out: all of them, with replicas."
_FRACTION = "Share of a GPU's memory that may be used. Left out: the engine's own, else 0.9."
_RESERVE = (
    "Kept on every GPU for activations, graphs, communication: left out, 4GiB, SGLang's 2.3GiB."
)
_STATE = f"Compressor state: {explained(SIZED_STATES)}; left out: fp32."
_STEP = "Tokens of one step, the prompt chunk. Left out: the engine's own, else 8192."
_IN_FLIGHT = "Tokens of the steps that overlap, all of them, instead of those two."
_LIMIT = "Requests that run at once at most. Left out: the engine's own."
_LOGITS = "Indexer logits are cut to it. Left out: the engine's own, else 512MiB."
_KV = "Memory of a GPU for KV, instead of what weights and reserve leave: 7.01GiB."
_BLOCKS = "Blocks of a GPU (SGLang: full tokens, at most), instead of its memory for KV."
_TIER = f"What keeps prefixes in host memory: {explained(HOST_TIERS)}. Left out: nothing."
_RETENTION = (
    "Tokens between the windows that vLLM keeps of a prefix: 0 (left out) keeps only the last "
    "window, dense those of every block."
)
_EXPLAIN = "Explain the sizes in a start-up log of vLLM or SGLang; two logs are compared."
_FLAGS = "flags"


class BudgetCommand(Command):
    """Understands the engines' flags next to our options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the engines' flags apart, for ``budget`` to read."""
        from dsv4kv.budget.flags import take_flags

        ours = {spelling for option in self.params for spelling in option.opts}
        ctx.meta[_FLAGS], rest = take_flags(args, ours)
        return super().parse_args(ctx, rest)


COMMAND = BudgetCommand
_TOO = "With --engine the engine's own flags are options, too: --max-num-seqs, --page-size, …\n\n"
EPILOG = _TOO + examples(
    "dsv4kv budget --gpu h200 --gpus 8                           what fits on eight H200",
    "dsv4kv budget --model v4-pro --context 128K --concurrency 64    how many GPUs that takes",
    "dsv4kv budget --gpus 8 --engine vllm --context 1M           what vLLM will print",
    "dsv4kv budget --gpus 8 --axis context=4K,32K,1M --axis gpu=h200,b200 --chart fits.svg",
)


def budget(
    arguments: typer.Context,
    logs: Annotated[
        list[Path] | None,
        argument("With --explain: a second log to compare with.", "[LOG]", show_default=True),
    ] = None,
    model: Annotated[Text, _ask(_MODEL, "NAME|FILE")] = None,
    context: Annotated[Text, _ask(_CONTEXT, "TOKENS")] = None,
    concurrency: Annotated[Text, _ask("Requests at once. Left out: as many as fit.", "N")] = None,
    engine: Annotated[Text, _ask(_ENGINE, "NAME")] = None,
    command: Annotated[Text, _ask(_COMMAND, "TEXT|FILE")] = None,
    which: Annotated[Text, _ask(_WHICH, "N|PART", rare=True)] = None,
    gpu: Annotated[Text, _gpu(f"{listed(shipped_names('gpus'))}; left out: h200.", "NAME")] = None,
    hbm: Annotated[Text, _gpu("Memory of a GPU instead: 141GiB.", "SIZE", rare=True)] = None,
    gpus: Annotated[Text, _gpu("GPUs. Left out: the fewest that are enough.", "N")] = None,
    tp: Annotated[
        Text, _gpu("Tensor parallel ranks; each holds the whole KV of its replica.", "N")
    ] = None,
    dp: Annotated[
        Text, _gpu("Data parallel replicas, each with requests of its own.", "N")
    ] = None,
    pp: Annotated[Text, _gpu("Pipeline stages, each with a share of the layers.", "N")] = None,
    ep: Annotated[Text, _gpu(_EP, "N", rare=True)] = None,
    memory_fraction: Annotated[Text, _gpu(_FRACTION, "SHARE", rare=True)] = None,
    reserve: Annotated[Text, _gpu(_RESERVE, "SIZE", rare=True)] = None,
    weights: Annotated[
        Text, _gpu("Size of the checkpoint. Left out: derived.", "SIZE", rare=True)
    ] = None,
    weight_bytes_per_param: Annotated[
        Text, _gpu("Bytes of every parameter, instead of derived types.", "BYTES", rare=True)
    ] = None,
    block_tokens: Annotated[
        Text, _cache("Tokens of a block. Left out: the engine's own.", "TOKENS")
    ] = None,
    main_format: Annotated[
        Text, _cache(f"Compressed entries: {listed(known_formats('main'))}.", "NAME")
    ] = None,
    window_format: Annotated[
        Text, _cache(f"Window entries: {listed(known_formats('window'))}.", "NAME")
    ] = None,
    indexer_format: Annotated[
        Text, _cache(f"Indexer keys: {listed(known_formats('indexer'))}.", "NAME")
    ] = None,
    state: Annotated[Text, _cache(_STATE, "NAME")] = None,
    draft_layers: Annotated[
        Text, _cache("Draft (MTP) layers that hold a window: 0 unless given.", "N")
    ] = None,
    draft_tokens: Annotated[
        Text, _cache("Speculative tokens that may be rolled back: 0 unless given.", "N")
    ] = None,
    step_tokens: Annotated[Text, _cache(_STEP, "TOKENS")] = None,
    overlap: Annotated[
        Text, _cache("Steps that overlap. Left out: the engine's own, else 1.", "N")
    ] = None,
    in_flight_tokens: Annotated[Text, _cache(_IN_FLIGHT, "TOKENS")] = None,
    request_limit: Annotated[Text, _cache(_LIMIT, "N")] = None,
    logits_limit: Annotated[Text, _cache(_LOGITS, "SIZE")] = None,
    kv_memory: Annotated[Text, _cache(_KV, "SIZE")] = None,
    kv_blocks: Annotated[Text, _cache(_BLOCKS, "N")] = None,
    host_tier: Annotated[Text, _host(_TIER, "NAME")] = None,
    host_ratio: Annotated[Text, _host("Pages of the host for one of the GPU.", "X")] = None,
    host_size: Annotated[
        Text, _host("Memory that the tier is given, as its engine counts it.", "SIZE")
    ] = None,
    host_memory: Annotated[
        Text, _host("Free memory of a node: what an engine refuses by.", "SIZE")
    ] = None,
    host_chunk: Annotated[
        Text, _host("Tokens of a chunk (lmcache). Left out: 256.", "TOKENS")
    ] = None,
    retention: Annotated[Text, _host(_RETENTION, "TOKENS")] = None,
    axis: Annotated[
        list[str] | None,
        _output("Sweep an option: context=4K,32K,128K; repeatable.", "NAME=A,B,…"),
    ] = None,
    verbose: Annotated[
        bool, flag("--verbose -v", "Print every pool, layout and option.", panel="Output")
    ] = False,
    json_: AsJson = False,
    csv: Annotated[Path | None, _output("Write a sweep as CSV.", "FILE", callback=to_file)] = None,
    chart: Annotated[
        Path | None,
        _output("Draw a sweep: FILE.svg, or FILE.html with its table.", "FILE", callback=to_file),
    ] = None,
    explain: Annotated[list[Path] | None, _output(_EXPLAIN, "LOG")] = None,
) -> None:
    """Say what fits: contexts and loads on GPUs, GPUs for a load, or what to change.

    Splits every answer into what a request costs whatever its length, what every token of context
    costs, and what a step needs for a moment. Memory is binary (1 GiB = 2^30 B), and so are
    counts (1M = 1,048,576). Ends with 1 if what was asked does not fit, in a sweep if anything of
    it does not, with --explain if a log is of a start that was refused.
    """
    from dsv4kv.budget.inputs import READERS

    if explain:
        _explain([*explain, *(logs or [])], as_json=json_, verbose=verbose)
        return
    if logs:
        raise ConfigError(f"{logs[0]}: give a log to explain as --explain {logs[0]}.")
    given = {name: arguments.params.get(name.replace("-", "_")) for name in READERS}
    texts = {name: text for name, text in given.items() if text is not None}
    reading = _read_command(texts, command, which)
    texts |= _read_flags(texts, arguments.meta.get(_FLAGS, []))
    if axis:
        _print_sweep(texts, axis, as_json=json_, csv=csv, chart=chart, verbose=verbose)
    elif csv or chart:
        raise ConfigError("--csv and --chart show a sweep: add --axis context=4K,32K,128K,1M.")
    else:
        _print_answer(texts, reading, as_json=json_, verbose=verbose)


def _explain(paths: list[Path], *, as_json: bool, verbose: bool) -> None:
    """Explain a start-up log, or what is between two; ends with 1 if a start was refused."""
    from dsv4kv.engines.logs.explain import explain_startup, make_waterfall
    from dsv4kv.engines.logs.read import read_log
    from dsv4kv.view.explain import explanation_page, waterfall_page
    from dsv4kv.view.render import show

    if len(paths) > 2:
        raise ConfigError(f"{len(paths)} logs: give one to explain, or two to compare.")
    explained = [explain_startup(read_log(path)) for path in paths]
    if len(explained) == 1:
        log = explained[0][0]
        document, page = asdict(log), explanation_page(log)
    else:
        waterfall = make_waterfall(*explained)
        document, page = asdict(waterfall), waterfall_page(waterfall)
    if as_json:
        print_json(document)
    else:
        show(page.in_full() if verbose else page.answer)
    _end(fits=all(log.printed_tokens is not None for log, _ in explained))


def _write_launch(found: "Answer", texts: dict[str, str], option: "Option | None") -> str:
    """The command that starts an option, or what was found: the engine's, or else our own."""
    from dsv4kv.budget.launch_line import launch_line

    line = ""
    if not found.scenario.engine.own:
        scenario = option.scenario if option else found.scenario
        requests = option.concurrency if option else found.max_concurrency
        line = launch_line(scenario, found.context, requests)
    if line or option is None:
        return line
    given = {
        name: text for name, text in texts.items() if f"--{name}" not in option.change.split()
    }
    words = [f"--{name} {shlex.quote(text)}" for name, text in given.items()]
    own = option.change.startswith("--")
    return " ".join(["dsv4kv budget", *words, option.change]) if own else ""


def _end(*, fits: bool) -> None:
    """End with the verdict, for scripts."""
    if not fits:
        raise typer.Exit(DoesNotFit.exit_code)


def _read_command(
    texts: dict[str, str], command: str | None, which: str | None
) -> "tuple[Reading, dict[str, str]] | None":
    """A command, read, with what was given next to it; ``texts`` become both, the latter first."""
    if command is None:
        if which is not None:
            raise ConfigError("--which chooses a command of a file: add --command FILE.")
        return None
    from dsv4kv.budget.launch import read_command

    given = dict(texts)
    reading = read_command(command, which, texts.get("model"))
    texts |= {name: text for name, text in reading.texts.items() if name not in given}
    return reading, given


def _read_flags(texts: dict[str, str], flags: list[tuple[str, str]]) -> dict[str, str]:
    """What the engine's flags mean; raises ``ConfigError`` for another engine's."""
    from dsv4kv.budget.flags import merge, read_flag, wrong_engine
    from dsv4kv.engines.flags import find_flag

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
    from dsv4kv.budget.advice import advise
    from dsv4kv.budget.answer import answer, peak_of, to_document
    from dsv4kv.budget.fit import compare_layouts, curve
    from dsv4kv.budget.inputs import read_inputs
    from dsv4kv.budget.launch import command_document, flag_costs
    from dsv4kv.budget.reuse import reuse_of
    from dsv4kv.view.budget import budget_page, view_command
    from dsv4kv.view.render import show

    found = answer(read_inputs(texts))
    options = advise(found.scenario, found.context, found.concurrency)
    contexts = curve(found.scenario)
    costs = flag_costs(*command, found) if command else ()
    if as_json:
        layouts = compare_layouts(found.scenario, found.context)
        reuse = reuse_of(found.scenario, found.context)
        document = to_document(found, options, layouts, contexts, reuse)
        document["peak"] = asdict(peak_of(found))
        if command:
            document["command"] = command_document(command[0], costs)
        print_json(document)
    else:
        lines: Any = view_command(command[0], costs) if command else ()
        launch = partial(_write_launch, found, texts)
        page = budget_page(found, options, contexts, given=texts, launch=launch, command=lines)
        show(page.in_full() if verbose else page.answer)
    _end(fits=found.fits)


def _print_sweep(
    texts: dict[str, str],
    axes: list[str],
    *,
    as_json: bool,
    csv: Path | None,
    chart: Path | None,
    verbose: bool,
) -> None:
    from dsv4kv.budget.sweep import parse_axis, run_sweep, to_values
    from dsv4kv.view.budget import sweep_chart, sweep_page
    from dsv4kv.view.html import render_page
    from dsv4kv.view.plots import to_svg_file
    from dsv4kv.view.render import show, to_csv
    from dsv4kv.view.table import tabulate

    rows = run_sweep(texts, [parse_axis(text) for text in axes])
    if csv:
        write_named(csv, to_csv(tabulate([to_values(row) for row in rows])), "--csv")
    if chart:
        drawn, suffix = sweep_chart(rows), chart.suffix.lower()
        if suffix not in (".svg", ".html"):
            raise ConfigError(f"--chart {chart}: name a file that ends in .svg or .html.")
        text = to_svg_file(drawn) if suffix == ".svg" else render_page(sweep_page(rows))
        write_named(chart, text, "--chart")
    if as_json:
        print_json([to_values(row) for row in rows])
    else:
        page = sweep_page(rows)
        show(page.in_full() if verbose else page.answer)
    for path in filter(None, (csv, chart)):
        say(f"written: {path}", err=as_json)
    _end(fits=all(row.fits for row in rows))
