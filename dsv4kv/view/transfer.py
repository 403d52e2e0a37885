"""``bench transfer``: what moved of every family, next to the limit and to what engines send."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsv4kv.config.experiments import TransferConfig
from dsv4kv.runs.statistics import Estimate, divide
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.quantity import format_number, percent, quantity, size, us
from dsv4kv.view.table import ABSENT, Columns, Finding, Number, Part, Table, Text

if TYPE_CHECKING:
    from dsv4kv.bench.transfer.receiver import Moved
    from dsv4kv.bench.transfer.run import Outcome

_KNOWN = 0.1  # an interval around 1 that is wider says nothing


def report_transfer(config: TransferConfig, outcome: "Outcome") -> Iterator[Part]:
    """The answer, whether all is right, and the tables."""
    yield Text(answer(outcome), "strong")
    yield _verdict(config, outcome)
    yield from ("", families_table(outcome))
    yield from ("", _costs_table(outcome))
    yield from ("", _engines_table(config, outcome))


def _verdict(config: TransferConfig, outcome: "Outcome") -> Finding:
    steps = counted(config.decode_steps, "decode step")
    if wrong := len(outcome.failures):
        return Finding("bad", f"{wrong} of 2 transfers differ after {steps}")
    return Finding(
        "good",
        f"all {counted(outcome.pages, 'page')} have the digests they were sent with; {steps} "
        "after each transfer read, bit for bit, what a request reads that stayed",
    )


def answer(outcome: "Outcome") -> str:
    """What limits, and what merging wins, as far as the intervals know."""
    total, costs = outcome.total, outcome.costs
    moved, pieces = (
        _times(costs.byte_ns, total.bytes),
        _times(costs.descriptor_ns, total.descriptors),
    )
    more, less = (moved, pieces) if moved[1] >= pieces[1] else (pieces, moved)
    limit = "Bytes" if more is moved else "Descriptors"
    words = f"{limit} limit" if more[0] > less[2] else "What limits is not known"
    words += (
        f": {format_duration(max(moved[1], 0), 2)} for {format_bytes(total.bytes)}, "
        f"{format_duration(max(pieces[1], 0), 2)} for {counted(total.descriptors, 'descriptor')}."
    )
    merged, single = outcome.gbps, outcome.unmerged_gbps
    if not (merged and single) or total.descriptors == total.pieces:
        return words
    gain = divide(merged, single)
    times, reach = f"{format_number(gain.value)} times as fast", gain.half_width
    if reach is None or abs(gain.value - 1) <= reach:
        times = "whether that is faster is not known"
        if reach is not None and reach <= _KNOWN:
            times = f"as fast as before, within {100 * reach:.0f} %"
    return f"{words} Merged, {total.pieces:,} pieces are {total.descriptors:,}: {times}."


def _times(cost: Estimate, count: int) -> tuple[float, float, float]:
    """What ``count`` of something cost: lower end, value, upper end."""
    reach = math.inf if cost.half_width is None else cost.half_width
    below, above = cost.arms or (reach, reach)
    return (cost.value - below) * count, cost.value * count, (cost.value + above) * count


def families_table(outcome: "Outcome") -> Table:
    """One row per family, and all of them."""

    def useful(row: "tuple[str, Moved]") -> Number:
        moved = row[1]
        return percent(moved.useful_bytes / moved.bytes if moved.bytes else None)

    def share(row: "tuple[str, Moved]") -> Number:
        rate, limit = row[1].gbps, outcome.memcpy_gbps
        return percent(divide(rate, limit) if rate and limit else None)

    return Table(
        "A request's cache, read by the decode side",
        [
            ("family", lambda row: row[0]),
            ("bytes", lambda row: size(row[1].bytes)),
            ("useful %", useful),
            ("pieces", lambda row: quantity(row[1].pieces)),
            ("merged", lambda row: quantity(row[1].descriptors)),
            ("GB/s", lambda row: quantity(row[1].gbps)),
            ("% of memcpy", share),
        ],
        [
            *((name, moved) for name, moved in outcome.families.items() if moved.bytes),
            ("all", outcome.total),
        ],
        note="pieces: pages of every layer; merged: descriptors once neighbours are one",
    )


def _costs_table(outcome: "Outcome") -> Table:
    cost = outcome.costs.byte_ns
    rate = divide(Estimate(1.0, 0.0), cost) if cost.value > 0 else None
    columns: Columns = [
        ("setup µs", lambda o: us(o.costs.setup_ns)),
        ("descriptor µs", lambda o: us(o.costs.descriptor_ns)),
        ("GB/s", lambda _: quantity(rate)),
        ("at its end s", lambda o: quantity(o.at_end_ns / 1e9)),
        ("by layer s", lambda o: quantity(o.by_layer_ns / 1e9)),
    ]
    note = "fitted to pages of two sizes; the last two: prompt and transfer, one run each"
    return Table("What a read costs", columns, [outcome], note=note)


def _engines_table(config: TransferConfig, outcome: "Outcome") -> Table:
    t = outcome.total
    rows: list[tuple[str | Number, ...]] = [
        ("read here", size(t.bytes), quantity(t.pieces), quantity(t.descriptors))
    ]
    for name, sent in outcome.engines.items():
        cells = (size(sent.bytes), quantity(sent.descriptors)) if sent else (Number(ABSENT),) * 2
        rows.append((name, *cells, Number(ABSENT)))
    return Table(
        f"{counted(config.timed_tokens, 'token')}, sent by",
        ["engine", "bytes", "descriptors", "merged"],
        rows,
        note="of the layers that are held; engines by the rules of their connectors",
    )
