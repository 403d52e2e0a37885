"""A transfer: what moved of every family, next to what could, and what engines would send."""

from collections.abc import Iterator

from dsv4kv.config.transfer import TransferConfig
from dsv4kv.engines.host import Sent
from dsv4kv.measure.statistics import Estimate, divide
from dsv4kv.moving.rows import Moved
from dsv4kv.moving.transfer_outcome import Outcome, Run
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.cells import format_number, measured
from dsv4kv.view.table import ABSENT, Number, Part, Table, Text, names, numbers


def report_transfer(config: TransferConfig, outcome: Outcome) -> Iterator[Part]:
    """Tables, and the answer below them."""
    for run in outcome.runs:
        yield families_table(run)
        yield ""
    yield costs_table(outcome)
    yield ""
    yield engines_table(config, outcome)
    yield ""
    for sentence in outcome.skipped:
        yield Text(sentence, "dim")
    for run in outcome.runs:
        yield Text(answer(run), "strong")
    yield Text(verified(config, outcome), "strong")


def families_table(run: Run) -> Table:
    """One row per family, and all of them."""
    of = "socket" if run.raw else "memcpy"
    rows = [_row(name, moved, run) for name, moved in run.moved.items() if moved.bytes]
    return Table(
        f"{run.transport}: a request's cache, read by the decode side",
        [
            *names("family"),
            *numbers("bytes", "useful %", "pieces", "merged", "GB/s", f"% of {of}"),
        ],
        [*rows, _row("all", run.total, run)],
        note="pieces: pages of every layer; merged: descriptors once neighbours are one",
        keys=1,
    )


def _row(name: str, moved: Moved, run: Run) -> tuple[str | Number, ...]:
    rate = run.rates[name]
    share = divide(rate, run.limit) if rate and run.limit else None
    value, unit = format_bytes(moved.bytes).split()
    return (
        name,
        Number(value, unit),
        Number(f"{100 * moved.useful_bytes / moved.bytes:.1f}" if moved.bytes else ABSENT),
        Number(f"{moved.pieces:,}"),
        Number(f"{moved.descriptors:,}"),
        measured(rate),
        measured(share, 100),
    )


def costs_table(outcome: Outcome) -> Table:
    """What a read costs, and what reading while the prompt is computed wins."""
    return Table(
        "What a read costs",
        [
            *names("transport"),
            *numbers("setup µs", "descriptor µs", "GB/s", "at its end s", "by layer s"),
        ],
        [
            (
                run.transport,
                measured(run.costs.setup_ns, 1e-3),
                measured(run.costs.descriptor_ns, 1e-3),
                measured(_inverse(run.costs.byte_ns)),
                Number(f"{run.at_end_ns / 1e9:.2f}"),
                Number(f"{run.by_layer_ns / 1e9:.2f}"),
            )
            for run in outcome.runs
        ],
        note="fitted to pages of two sizes; the last two: prompt and transfer, one run each",
        keys=1,
    )


def engines_table(config: TransferConfig, outcome: Outcome) -> Table:
    """What engines would send for this request, next to what was read."""
    rows: list[tuple[str | Number, ...]] = []
    if outcome.runs:
        total = outcome.runs[0].total
        rows.append(_sent("read here", Sent(total.bytes, total.pieces), total))
    for name, sent in outcome.engines.items():
        rows.append(_sent(name, sent, None) if sent else (name, *[Number(ABSENT)] * 3))
    return Table(
        f"{counted(config.timed_tokens, 'token')}, sent by",
        [*names("engine"), *numbers("bytes", "descriptors", "merged")],
        rows,
        note="of the layers that are held; engines by the rules of their connectors",
        keys=1,
    )


def _sent(name: str, sent: Sent, merged: Moved | None) -> tuple[str | Number, ...]:
    value, unit = format_bytes(sent.bytes).split()
    fewer = Number(f"{merged.descriptors:,}" if merged else ABSENT)
    return name, Number(value, unit), Number(f"{sent.descriptors:,}"), fewer


def answer(run: Run) -> str:
    """What limits, and what merging wins."""
    total, costs = run.total, run.costs
    bytes_ns = total.bytes * costs.byte_ns.value
    pieces_ns = total.descriptors * costs.descriptor_ns.value
    limit = "bytes" if bytes_ns >= pieces_ns else "descriptors"
    words = (
        f"{run.transport}: {limit} limit: {format_duration(max(bytes_ns, 0))} for "
        f"{format_bytes(total.bytes)}, {format_duration(max(pieces_ns, 0))} for "
        f"{counted(total.descriptors, 'descriptor')}."
    )
    merged, single = run.rates["all"], run.rates["unmerged"]
    if not (merged and single):
        return words
    gain = divide(merged, single)
    return f"{words} Merged, {total.pieces:,} pieces are {total.descriptors:,}: {_times(gain)}."


def verified(config: TransferConfig, outcome: Outcome) -> str:
    """Whether everything that was compared is equal."""
    pages = sum(run.pages for run in outcome.runs)
    wrong = sum(len(run.failures) for run in outcome.runs)
    steps = counted(config.decode_steps, "decode step")
    if wrong:
        return f"{wrong} of {2 * len(outcome.runs)} transfers differ after {steps}."
    return (
        f"All {counted(pages, 'page')} have the digests that they left with, and {steps} after "
        "every transfer read, bit for bit, what a request reads that never left."
    )


def _times(gain: Estimate) -> str:
    """How much faster, where the interval excludes 1."""
    half = gain.half_width
    if half is not None and abs(gain.value - 1) <= half:
        return f"as fast as before, within {100 * half:.0f} %"
    return f"{format_number(gain.value)} times as fast"


def _inverse(estimate: Estimate) -> Estimate | None:
    """GB/s of ns per byte."""
    return divide(Estimate(1.0, 0.0), estimate) if estimate.value > 0 else None
