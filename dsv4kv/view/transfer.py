"""``bench transfer``: what moved of every family, a plain copy, and what engines would send."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsv4kv.config.experiments import TransferConfig
from dsv4kv.runs.statistics import divide
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.quantity import percent, quantity, size
from dsv4kv.view.table import ABSENT, Finding, Number, Part, Table, Text

if TYPE_CHECKING:
    from dsv4kv.bench.transfer.run import Moved, Outcome


def report_transfer(config: TransferConfig, outcome: "Outcome") -> Iterator[Part]:
    """The answer, whether all is right, and the tables."""
    yield Text(answer(config, outcome), "strong")
    yield _verdict(config, outcome)
    yield from ("", families_table(outcome))
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


def answer(config: TransferConfig, outcome: "Outcome") -> str:
    """What was moved, and how long a prompt takes to come."""
    total = outcome.total
    end, layers = (format_duration(ns, 2) for ns in (outcome.at_end_ns, outcome.by_layer_ns))
    return (
        f"{counted(config.timed_tokens, 'token')} are {format_bytes(total.bytes)} in "
        f"{counted(total.pieces, 'piece')}, {total.descriptors:,} where neighbours are merged. A "
        f"prompt of {counted(config.tokens, 'token')}, computed and moved, takes {end} read at "
        f"its end and {layers} read layer by layer (one run each)."
    )


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
