"""``dsv4kv budget``: which contexts and loads fit on which GPUs, and what they cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from dsv4kv.budget.inputs import (
    READERS,
    SIZED_STATES,
    merge,
    read_flag,
    read_inputs,
    take_flags,
    wrong_engine,
)
from dsv4kv.choices import explained, listed
from dsv4kv.cli import Command, command
from dsv4kv.cli import options as opt
from dsv4kv.engines.names import (
    ENGINES,
    FAMILIES,
    HOST_TIERS,
    engine_family,
    family_of,
    find_flag,
)
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.files import shipped_names
from dsv4kv.model.formats import known_formats
from dsv4kv.view.console import say
from dsv4kv.view.table import Command as Paste

if TYPE_CHECKING:
    from dsv4kv.budget.answer import Answer
    from dsv4kv.budget.fit import Option
    from dsv4kv.budget.inputs import GivenFlag
    from dsv4kv.budget.launch import Reading
    from dsv4kv.view.table import Page

_ask = partial(opt.Row, panel="Question")
_gpu = partial(opt.Row, panel="GPUs and layout")
_cache = partial(opt.Row, panel="Cache", rare=True)
_host = partial(opt.Row, panel="Host memory", rare=True)
_GPUS = shipped_names("gpus")
_ENGINES = (
    f"Whose rules size the cache: {listed(FAMILIES)}, or a version: {engine_family('vllm')[-1]}."
)
_COMMAND = (
    "A launch command of vLLM, SGLang or TensorRT-LLM, or a file with one (script, YAML, "
    "compose): what its flags cost. Other options come on top."
)
_RETENTION = (
    "Tokens between the windows that vLLM keeps of a prefix: 0 keeps only the last window, dense "
    "the window of every block."
)
INPUTS = {
    "model": _ask(opt.MODELS, "NAME|FILE", "v4-flash", values=opt.MODEL_NAMES),
    "context": _ask("Tokens of every request: 128K, 1M.", "TOKENS", "the longest that fits"),
    "concurrency": _ask("Concurrent requests.", "N", "the most that fit"),
    "engine": _ask(_ENGINES, "NAME", "dsv4kv", values={**FAMILIES, **ENGINES}),
    "command": _ask(_COMMAND, "TEXT|FILE", rare=True),
    "which": _ask("Number or a part of a command of a file with several.", "N|PART", rare=True),
    "gpu": _gpu(f"{listed(_GPUS)}.", "NAME", "h200", values=_GPUS),
    "hbm": _gpu("Memory of a GPU instead: 141GiB.", "SIZE", rare=True),
    "gpus": _gpu("Number of GPUs.", "N", "the fewest that are enough"),
    "tp": _gpu("Tensor parallel ranks; each holds the whole KV of its replica.", "N"),
    "dp": _gpu("Data parallel replicas, each with requests of its own.", "N"),
    "pp": _gpu("Pipeline stages, each with a share of the layers.", "N", rare=True),
    "ep": _gpu("Ranks of a stage that share the routed experts.", "N", "all of them", rare=True),
    "memory_fraction": _gpu("Share of a GPU's memory to use.", "SHARE", "the engine's", rare=True),
    "reserve": _gpu(
        "Kept on every GPU for activations, graphs and communication.",
        "SIZE",
        "fitted to recorded starts, else 4GiB",
        rare=True,
    ),
    "weights": _gpu("Size of the checkpoint.", "SIZE", "derived", rare=True),
    "block_tokens": _cache("Tokens of a block.", "TOKENS", "the engine's"),
    "main_format": _cache(f"Compressed entries: {listed(known_formats('main'))}.", "NAME"),
    "window_format": _cache(f"Window entries: {listed(known_formats('window'))}.", "NAME"),
    "indexer_format": _cache(f"Indexer keys: {listed(known_formats('indexer'))}.", "NAME"),
    "state": _cache(f"Compressor state: {explained(SIZED_STATES)}.", "NAME", "fp32"),
    "draft_layers": _cache("Draft (MTP) layers that hold a window.", "N", "0"),
    "draft_tokens": _cache("Speculative tokens that may be rolled back.", "N", "0"),
    "step_tokens": _cache("Tokens of one step, the prompt chunk.", "TOKENS", "the engine's"),
    "overlap": _cache("Steps that overlap.", "N", "the engine's, else 1"),
    "in_flight_tokens": _cache("Tokens in flight; overrides both.", "TOKENS"),
    "request_limit": _cache("Concurrent requests at most.", "N", "the engine's"),
    "logits_limit": _cache("Cap on the indexer-logits workspace.", "SIZE", "the engine's"),
    "kv_memory": _cache("Memory of a GPU for KV: 7.01GiB.", "SIZE", "what is left"),
    "kv_blocks": _cache("Blocks of a GPU, for SGLang full tokens.", "N", "what fits"),
    "host_tier": _host(f"What keeps prefixes there: {explained(HOST_TIERS)}.", "NAME", "nothing"),
    "host_ratio": _host("Pages of the host for one of the GPU.", "X"),
    "host_size": _host("Memory of the tier, as its engine counts it.", "SIZE"),
    "host_memory": _host("Free memory of a node: what an engine refuses by.", "SIZE"),
    "host_chunk": _host("Tokens of a chunk (lmcache).", "TOKENS", "256"),
    "retention": _host(_RETENTION, "TOKENS", "0"),
}
"""Options that say what is sized; ``dsv4kv.budget.inputs`` reads them."""
_FLAGS = "flags"


class BudgetCommand(Command):
    """Understands the engines' flags next to our options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the engines' flags apart, for ``budget`` to read."""
        ours = {spelling for option in self.params for spelling in option.opts}
        ctx.meta[_FLAGS], rest = take_flags(args, ours)
        return super().parse_args(ctx, rest)


_TOO = "With --engine the engine's own flags are options, too: --max-num-seqs, --page-size, …\n\n"
_AXIS = "Sweep an option: context=4K,32K,128K; repeatable."
_VERBOSE = "Print every pool, layout and option."
_CHART = "Draw a sweep: .svg, or .html."


@command(
    "budget",
    "dsv4kv budget --gpu h200 --gpus 8                           what fits on eight H200",
    "dsv4kv budget --model v4-pro --context 128K --concurrency 64    how many GPUs that takes",
    "dsv4kv budget --gpus 8 --engine vllm --context 1M           what vLLM will print",
    "dsv4kv budget --gpus 8 --axis context=4K,1M --axis gpu=h200,b200 --chart a.svg",
    kind=BudgetCommand,
    before=_TOO,
)
@opt.takes(INPUTS)
def budget(
    arguments: typer.Context,
    given: dict[str, str],
    axis: opt.Texts = opt.option(_AXIS, "NAME=A,B,…", panel="Output"),
    verbose: bool = opt.flag("--verbose -v", _VERBOSE, panel="Output"),
    json_: bool = opt.AS_JSON,
    chart: Path | None = opt.option(_CHART, "FILE", callback=opt.to_chart, panel="Output"),
) -> None:
    """Estimate KV-cache capacity: requests that fit, GPUs needed, what frees memory.

    Splits every answer into what a request costs whatever its length, what every token of context
    costs, and what a step needs for a moment. Memory is binary (1 GiB = 2^30 B), and so are
    counts (1M = 1,048,576). Ends with 1 if what was asked does not fit, in a sweep if anything of
    it does not.
    """
    from dsv4kv.budget.launch import read_command

    if chart and not axis:
        raise ConfigError("--chart shows a sweep: add --axis context=4K,32K,128K,1M.")
    command, which = given.pop("command", None), given.pop("which", None)
    named = {name.replace("_", "-"): text for name, text in given.items()}
    options = {name: named[name] for name in READERS if name in named}
    reading, typed = None, [({name}, [f"--{name}", text]) for name, text in options.items()]
    texts = dict(options)
    if command is not None:
        reading = read_command(command, which, options.get("model"), set(options)), options
        texts = {**reading[0].texts, **options}
        chosen = ["--which", which] if which else []
        typed.insert(0, (set(), ["--command", command, *chosen]))
    elif which is not None:
        raise ConfigError("--which chooses a command of a file: add --command FILE.")
    engine = texts.get("engine", "dsv4kv")
    family = engine.partition(":")[0].lower()
    flags = _read_flags(family, arguments.meta.get(_FLAGS, []), options)
    extra = merge(family, flags) if flags else {}
    texts |= extra
    reading = reading and (reading[0], options | extra)
    texts |= _with_dp_attention(texts)
    for each in flags:
        words = [each.spelling, *filter(None, [each.value])]
        typed.append((set(merge(family, [each])), words))
    found = _sweep(texts, axis, chart) if axis else size(texts, reading, typed, flags)
    if json_:
        opt.print_json(found.document())
    else:
        opt.show_page(found.page(), verbose=verbose)
    if chart:
        say(f"written: {chart}", err=json_)
    if not found.fits:
        raise typer.Exit(DoesNotFit.exit_code)


class Found(NamedTuple):
    """An answer for programs and one for people, made when printed, and whether it fits."""

    document: Callable[[], Any]
    page: "Callable[[], Page]"
    fits: bool


_Typed = Sequence[tuple[set[str], list[str]]]
"""Words of the command line, each with the inputs that they give."""


def _read_flags(
    family: str, flags: Sequence[tuple[str, str]], options: Mapping[str, str]
) -> "list[GivenFlag]":
    """The engine's flags, read; refuses another engine's flag or an option's.

    Raises:
        ConfigError: These, and a value that is not of its kind.
    """
    if not flags:
        return []
    for spelling, _ in flags:
        if find_flag(family, spelling) is None:
            raise wrong_engine(family, spelling)
    read = [read_flag(family, spelling, value) for spelling, value in flags]
    if twice := sorted(set(merge(family, read)) & set(options)):
        # of several flags together: the first
        spelling = next((e.spelling for e in read if twice[0] in e.texts), read[0].spelling)
        raise ConfigError(f"--{twice[0]} and {spelling} say the same: keep one.")
    return read


def _with_dp_attention(texts: Mapping[str, str]) -> dict[str, str]:
    """Ranks of a replica, where ``--tp 8 --dp 8`` of 8 GPUs has SGLang's meaning."""
    family = family_of(texts.get("engine", ""))
    spans = family is not None and family.launch.tp_spans_replicas
    tp, dp, gpus = (texts.get(name, "") for name in ("tp", "dp", "gpus"))
    if not (spans and tp == gpus and tp.isdecimal() and dp.isdecimal() and int(dp) > 1):
        return {}
    return {"tp": str(int(tp) // int(dp))} if int(tp) % int(dp) == 0 else {}


def size(
    texts: dict[str, str],
    command: "tuple[Reading, dict[str, str]] | None",
    typed: _Typed | None = None,
    options: "Sequence[GivenFlag]" = (),
) -> Found:
    """Size a deployment; of a launch command, with what was given in addition to it.

    ``options`` are flags of the engine that were given as options.
    """
    from dsv4kv.budget.answer import answer, overhead_of, peak_lines, to_document
    from dsv4kv.budget.fit import advise, curve
    from dsv4kv.budget.launch import OURS, command_document, flag_costs
    from dsv4kv.view.budget import budget_page, view_command, view_uncounted

    try:
        found = answer(read_inputs(texts))
    except DoesNotFit as lack:
        if not (command and command[0].unread):
            raise
        raise DoesNotFit(f"{lack} Not read: {'; '.join(command[0].unread)}.") from None
    advice = advise(found.scenario, found.context, found.concurrency)
    contexts = curve(found.scenario, found.context)
    costs = tuple(flag_costs(*command, found)) if command else ()

    def document() -> dict[str, Any]:
        values = to_document(found, advice, contexts)
        values["peak"] = {
            "lines": [asdict(line) for line in peak_lines(found)],
            "not_counted": overhead_of(found).unknown,
        }
        return values | ({"command": command_document(command[0], costs)} if command else {})

    def page() -> "Page":
        read = command[0].texts if command else {}
        changed = {n.replace("-", "_") for n, text in texts.items() if read.get(n) != text}
        as_read = bool(read) and changed <= OURS
        flags = command[0].flags if command else ()
        launch = partial(_write_launch, found, typed, flags, as_read=as_read)
        gpu = "" if {"gpu", "hbm"} & set(texts) else found.scenario.gpu.name
        lines = view_command(command[0], costs, found.use.memory, gpu) if command else ()
        uncounted = [*(command[0].uncounted if command else ())]
        uncounted += [each for each in options if each.flag and not each.flag.means]
        return budget_page(
            found,
            advice,
            contexts,
            given=texts,
            launch=launch,
            command=lines,
            uncounted=view_uncounted(uncounted, found.scenario),
            misspelt=command[0].misspelt if command else {},
        )

    return Found(document, page, found.fits)


def _write_launch(
    found: "Answer",
    typed: _Typed | None,
    flags: "Sequence[GivenFlag]",
    option: "Option | None",
    *,
    as_read: bool,
) -> str:
    """The command of an option, or of the answer itself, unless that is ``as_read``.

    Where no launch command says it, what was typed with the option added.
    """
    from dsv4kv.budget.launch import launch_line

    if option is None and as_read:
        return ""
    if not found.scenario.engine.own:
        scenario = option.scenario if option else found.scenario
        requests = option.concurrency if option else found.max_concurrency
        if line := launch_line(scenario, found.context, requests, flags):
            return _without_faults(line, scenario.engine.name)
    if option is None or typed is None or not option.change.startswith("--"):
        return ""
    replaced = {name.replace("_", "-") for name in option.inputs}
    kept = [word for means, words in typed if not means & replaced for word in words]
    return f"{Paste.of('dsv4kv', 'budget', *kept)} {option.change}"


def _without_faults(line: str, engine: str) -> str:
    """A launch line with the switches whose absence is a known fault of this version."""
    from dsv4kv.diagnose.faults import judge, load_faults

    family = engine.partition(":")[0]
    switches = {
        fault: flag.name
        for fault in load_faults()
        if fault.engine == family and (flag := find_flag(family, fault.mended_by)) and flag.switch
    }
    if not switches:
        return line
    from dsv4kv.diagnose.subjects import read_subjects

    found = judge(read_subjects(line, engine), [*switches], date.today())
    return " ".join([line, *(switches[each.fault] for each in found if each.is_sure)])


def _sweep(texts: Mapping[str, str], axes: Sequence[str], chart: Path | None) -> Found:
    from dsv4kv.budget.sweep import parse_axis, run_sweep, to_values
    from dsv4kv.view import budget, html

    rows = run_sweep(texts, [parse_axis(text, texts.get("engine", "")) for text in axes])
    values, page = [to_values(row) for row in rows], partial(budget.sweep_page, rows)
    if chart:
        html.write_chart(chart, page().made_now())
    return Found(lambda: values, page, all(row.fits for row in rows))
