"""``dsv4kv bench op``: one operation, checked and timed."""

from itertools import product

from dsv4kv.choices import BACKENDS, PEERS, listed
from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError
from dsv4kv.units import counted, parse_count
from dsv4kv.view.console import open_console

EPILOG = examples(
    "dsv4kv bench op gather_topk                       8 requests of 8K tokens: seconds on a CPU",
    "dsv4kv bench op gather_topk --batch 64 --topk 1024 --context 128K    on a GPU",
    "dsv4kv bench op gather_topk --backend my_gather.py:gather_topk   and how much faster it is",
    "dsv4kv bench op attend --batch 1,8,64 --context 8K,128K          a table",
)
_NAME = "Operation of a decode step: gather_topk, attend, index_scores, step_write, …"
_BACKEND = f"{listed(BACKENDS | PEERS)}, or your own my_gather.py:gather_topk."
_DEFAULT = "8"


def op(
    name: str = opt.required(_NAME, "NAME"),
    batch: str = opt.option("Requests.", "N,…", default=_DEFAULT),
    topk: opt.Text = opt.option(
        "Entries that a token selects.", "N,…", show_default="the model's"
    ),
    context: str = opt.option("Tokens of every request.", "TOKENS,…", default="8K"),
    backend: opt.Text = opt.option(_BACKEND, "NAME|FILE:FUNCTION", show_default="our own"),
    model: str = opt.option(opt.MODELS, "NAME|FILE", rare=True, default="v4-flash"),
    device: opt.Text = opt.option("auto, cpu or cuda.", rare=True),
    seconds: float = opt.option("Time per row.", rare=True, min=1.5, max=600, default=5.0),
    set_: opt.Texts = opt.SET_RARE,
    as_json: bool = opt.AS_JSON,
) -> None:
    """Check one operation against the reference, then time it.

    With --backend its operation is timed alternately with ours. Ends with 6 if a case differs
    from the reference; nothing is timed then.
    """
    from dsv4kv.bench.device import describe_gpu
    from dsv4kv.bench.single import OperationBench, Shape
    from dsv4kv.runs.environment import capture_environment
    from dsv4kv.view.bench import op_page, op_values

    keys = {"backend": "backend", "device": "device", "model": "model.preset"}
    given = {"backend": backend, "device": device, "model": model}
    axes = [_counts("--batch", batch), _counts("--topk", topk), _counts("--context", context)]
    bench = OperationBench(name, [*opt.as_settings(keys, given), *(set_ or [])], seconds)
    console = open_console(stderr=True, quiet=as_json)
    with console.status("") as status:

        def report(what: str) -> None:
            status.update(f"{name}: {what}")
            if not console.is_terminal:  # a log has no line that is drawn again
                console.print(f"{name}: {what}", highlight=False, soft_wrap=True)

        report("checking against the reference")
        cases, timed = bench.check(), []
        for requests, chosen, tokens in product(*axes):
            report(f"timing {counted(requests, 'request')} of {tokens:,} tokens, {seconds:g} s")
            shape = Shape(requests, chosen or None, tokens)
            timed.append(bench.time(shape, capture_environment()["memory_bytes"]))
    page = op_page(name, bench.resolved.name, cases, timed, describe_gpu(device or "auto"))
    opt.tell(page.answer, op_values(name, cases, timed), as_json=as_json, cut=True)


def _counts(option: str, text: str | None) -> list[int]:
    """Numbers with commas between; 0 where none is given."""
    if text is None:
        return [0]
    counts = [parse_count(each) for each in opt.split(text)]
    if not counts or min(counts) < 1:
        raise ConfigError(f"{option} {text}: give numbers above 0, commas between.")
    return counts
