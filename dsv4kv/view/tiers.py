"""``bench tiers``: what a prefix costs to store and restore, and its families."""

from collections.abc import Iterator

from dsv4kv.measure.statistics import Estimate, divide
from dsv4kv.transfer.outcome import CopyRow, PrefixRow, TiersOutcome
from dsv4kv.units import format_duration
from dsv4kv.view.quantity import ms, quantity, size
from dsv4kv.view.table import ABSENT, Finding, Number, Part, Read, Table, Text


def report_tiers(outcome: TiersOutcome) -> Iterator[Part]:
    """The answer, whether all is right, and the tables."""
    for sentence in outcome.answers():
        yield Text(sentence, "strong")
    if outcome.overlap:
        yield Text(outcome.overlap.sentence, "strong")
    yield _verdict(outcome)
    yield from ("", _prefixes_table(outcome))
    yield from ("", _families_table(outcome))
    if outcome.copies:
        yield from ("", _copies_table(outcome))


def _verdict(outcome: TiersOutcome) -> Finding:
    if outcome.failures:
        return Finding(
            "bad", f"{len(outcome.failures):,} of {outcome.checks:,} comparisons failed"
        )
    if not outcome.exact:
        return Finding(
            "good",
            f"all {outcome.checks:,} digests are equal; windows are approximate, and what is "
            "recomputed has other bits than a request that was never moved",
        )
    return Finding(
        "good",
        f"all {outcome.checks:,} comparisons are equal: digests, and after further steps every "
        "bit of restored requests and of ones that were never moved",
    )


def _prefixes_table(outcome: TiersOutcome) -> Table:
    columns: list[tuple[str, Read]] = [
        ("store", lambda row: row.store),
        ("tokens", lambda row: quantity(row.tokens)),
        ("read", lambda row: size(row.read_bytes)),
        ("/useful", lambda row: quantity(row.amplification)),
        ("restore ms", lambda row: ms(row.restored)),
        ("resumed at", lambda row: quantity(row.resumed_tokens)),
        ("again ms", lambda row: ms(row.again_ns)),
        ("compute ms", lambda row: ms(row.computed_ns)),
        ("store ms", lambda row: ms(row.stored)),
        ("lookup pages/s", _lookup),
    ]
    if not outcome.resumes_earlier:
        columns = [column for column in columns if column[0] not in ("resumed at", "again ms")]
    what = "compute, again" if outcome.resumes_earlier else "compute"
    cold = [f"{store} is read cold, by {way}" for store, way in outcome.cold.items()]
    return Table(
        f"Prefixes of {outcome.model}, windows kept at {outcome.windows}",
        columns,
        outcome.prefixes,
        note=f"{what}: modelled on {outcome.gpu}; "
        f"{'; '.join(cold) or 'nothing is read from a disk'}",
        keys=2,
    )


def _lookup(row: PrefixRow) -> Number:
    return quantity(divide(Estimate(row.pages, 0.0), row.looked_up), 1e9)


def _families_table(outcome: TiersOutcome) -> Table:

    def way(name: str, header: str) -> list[tuple[str, Read]]:
        return [
            (header, lambda row: Number(format_duration(getattr(row, name).time.value))),
            ("GB/s", lambda row: quantity(row.rate(getattr(row, name)))),
            ("% of limit", lambda row: _rounded(getattr(row, name).share)),
        ]

    longest = max((row.tokens for row in outcome.prefixes), default=0)
    return Table(
        f"Families of {longest:,} tokens",
        [*_family_columns(store=True), *way("restore_way", "restore"), *way("store_way", "store")],
        outcome.families,
        note="limit: as many copies in memory, or pieces of a new file by as many threads",
        keys=2,
    )


def _copies_table(outcome: TiersOutcome) -> Table:

    def way(name: str, header: str) -> list[tuple[str, Read]]:
        def rate(row: CopyRow, how: str) -> Number:
            return quantity(divide(Estimate(row.bytes, 0.0), getattr(getattr(row, name), how)))

        return [
            (header, lambda row: rate(row, "gathered")),
            ("by pages", lambda row: rate(row, "by_pages")),
            (
                "% of copy",
                lambda row: _rounded(
                    divide(getattr(row, name).whole, getattr(row, name).gathered)
                ),
            ),
        ]

    return Table(
        "Between the GPU and pinned memory of the host",
        [*_family_columns(store=False), *way("there", "to host GB/s"), *way("back", "back GB/s")],
        outcome.copies,
        note="gathered by one launch; by pages: a copy for every piece; % of one copy as large",
    )


def _family_columns(*, store: bool) -> list[tuple[str, Read]]:
    columns: list[tuple[str, Read]] = [
        ("store", lambda row: row.store),
        ("family", lambda row: row.family),
        ("objects", lambda row: quantity(row.objects)),
        ("bytes", lambda row: size(row.bytes)),
    ]
    return columns if store else columns[1:]


def _rounded(share: Estimate | None) -> Number:
    return Number(f"{share.value * 100:.0f}" if share else ABSENT)
