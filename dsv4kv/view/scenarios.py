"""``bench systems``, ``bench transfer`` and ``bench tiers``: is all right, and what it took."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.config.experiments import TransferConfig
from dsv4kv.runs.statistics import divide
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.quantity import ms, percent, quantity, size
from dsv4kv.view.table import Columns, Finding, Number, Page, Table, Text

if TYPE_CHECKING:
    from dsv4kv.bench import systems as workload
    from dsv4kv.bench.tiers import TiersOutcome
    from dsv4kv.bench.transfer import Moved, Outcome


def systems_page(outcomes: "Sequence[workload.Outcome]") -> Page:
    """Whether all outputs are right, and a row per quantity, with the policies side by side."""
    compared = sum(sum(outcome.checks.values()) for outcome in outcomes)
    wrong = sum(len(outcome.failures) for outcome in outcomes)
    names = ", ".join(outcome.system for outcome in outcomes)
    failed = f"{wrong:,} of {compared:,} comparisons with the reference failed"
    equal = f"all {compared:,} comparisons with the reference are equal: {names}"
    verdict = Finding("bad", failed) if wrong else Finding("good", equal)
    amounts: dict[tuple[str, str], dict[str, Number]] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            policy, _, name = row.quantity.rpartition(": ")
            amount = size(row.value) if row.unit == "B" else Number(f"{row.value:,.0f}")
            amounts.setdefault((outcome.system, name), {})[policy] = amount
    policies = dict.fromkeys(policy for found in amounts.values() for policy in found)
    rows = [
        (*key, *(found.get(policy, Number("")) for policy in policies))
        for key, found in amounts.items()
    ]
    heads = ["system", "quantity", *(policy or "amount" for policy in policies)]
    return Page("Systems", [verdict, "", Table("Systems", heads, rows, keys=2, most=30)])


def transfer_page(config: TransferConfig, outcome: "Outcome") -> Page:
    """The answer, whether all is right, and the tables."""
    answer = Text(_sentence(config, outcome), "strong"), _transfer_verdict(config, outcome)
    return Page("Transfer", [*answer, "", _families_table(outcome)])


def _transfer_verdict(config: TransferConfig, outcome: "Outcome") -> Finding:
    steps = counted(config.decode_steps, "decode step")
    if outcome.failures:
        return Finding("bad", f"the request differs after {steps}")
    return Finding(
        "good",
        f"all {counted(outcome.pages, 'page')} have the digests they were sent with; {steps} "
        "after the transfer read, bit for bit, what a request reads that stayed",
    )


def _sentence(config: TransferConfig, outcome: "Outcome") -> str:
    """What was moved, and how long a prompt takes to come."""
    total = outcome.total
    taken = format_duration(outcome.prompt_ns, 2)
    return (
        f"{counted(config.timed_tokens, 'token')} are {format_bytes(total.bytes)} in "
        f"{counted(total.pieces, 'piece')}, {total.descriptors:,} where neighbours are merged. A "
        f"prompt of {counted(config.tokens, 'token')}, computed, moved and verified, takes "
        f"{taken} (one run)."
    )


def _families_table(outcome: "Outcome") -> Table:
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


def tiers_page(outcome: "TiersOutcome") -> Page:
    """The answer, whether all is right, and the prefixes."""
    failed = f"{len(outcome.failures):,} of {outcome.checks:,} comparisons failed"
    equal = (
        f"all {outcome.checks:,} comparisons are equal: digests, and after further steps "
        "every bit of restored requests and of ones that were never moved"
    )
    verdict = Finding("bad", failed) if outcome.failures else Finding("good", equal)
    answers = [Text(sentence, "strong") for sentence in outcome.answers()]
    return Page("Tiers", [*answers, verdict, "", _prefixes_table(outcome)])


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
    title = f"Prefixes of {outcome.model}"
    note = f"compute: modelled on {outcome.gpu}; files are read from the disk, not its cache"
    return Table(title, columns, outcome.prefixes, note=note, keys=2)
