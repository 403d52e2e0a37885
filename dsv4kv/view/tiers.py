"""``bench tiers``: what a prefix costs to store and restore."""

from typing import TYPE_CHECKING

from dsv4kv.runs.statistics import Estimate, divide
from dsv4kv.view.quantity import ms, percent, quantity, size
from dsv4kv.view.table import Columns, Finding, Number, Page, Section, Table, Text

if TYPE_CHECKING:
    from dsv4kv.bench.tiers.run import FamilyRow, TiersOutcome


def tiers_page(outcome: "TiersOutcome") -> Page:
    """The answer, whether all is right, and the prefixes; then copies of a GPU."""
    failed = f"{len(outcome.failures):,} of {outcome.checks:,} comparisons failed"
    equal = (
        f"all {outcome.checks:,} comparisons are equal: digests, and after further steps "
        "every bit of restored requests and of ones that were never moved"
    )
    verdict = Finding("bad", failed) if outcome.failures else Finding("good", equal)
    answers = [Text(sentence, "strong") for sentence in outcome.answers()]
    copies = [_copies_table(outcome)] if outcome.copies else []
    sections = [Section(table.title, [table]) for table in copies]
    return Page("Tiers", [*answers, verdict, "", _prefixes_table(outcome)], sections)


def _prefixes_table(outcome: "TiersOutcome") -> Table:
    columns: Columns = [
        ("store", lambda row: row.store),
        ("tokens", lambda row: quantity(row.tokens)),
        ("read", lambda row: size(row.read_bytes)),
        ("/useful", lambda row: quantity(row.amplification)),
        ("restore ms", lambda row: ms(row.restored)),
        ("compute ms", lambda row: ms(row.computed_ns)),
        ("store ms", lambda row: ms(row.stored)),
    ]
    cold = [f"{store} is read cold, by {way}" for store, way in outcome.cold.items()]
    read = "; ".join(cold) or "nothing is read from a disk"
    title = f"Prefixes of {outcome.model}"
    note = f"compute: modelled on {outcome.gpu}; {read}"
    return Table(title, columns, outcome.prefixes, note=note, keys=2)


def _copies_table(outcome: "TiersOutcome") -> Table:
    def way(name: str, header: str) -> Columns:
        return [
            (header, lambda row: _rate(row, getattr(row, name).time)),
            ("by pages", lambda row: _rate(row, getattr(row, name).by_pages)),
            ("% of copy", lambda row: percent(getattr(row, name).share)),
        ]

    columns: Columns = [
        ("family", lambda row: row.family),
        ("bytes", lambda row: size(row.bytes)),
        *way("store_way", "to host GB/s"),
        *way("restore_way", "back GB/s"),
    ]
    title = "Between the GPU and pinned memory of the host"
    note = "gathered by one launch; by pages: a copy for every piece; % of one copy as large"
    return Table(title, columns, outcome.copies, note=note)


def _rate(row: "FamilyRow", time_ns: Estimate) -> Number:
    return quantity(divide(Estimate(row.bytes, 0.0), time_ns))
