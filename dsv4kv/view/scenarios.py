"""``bench systems``, ``bench transfer`` and ``bench tiers``: is all right, and what it took."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.config.experiments import TransferConfig
from dsv4kv.runs.statistics import divide
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view import table as tb

if TYPE_CHECKING:
    from dsv4kv.bench import systems
    from dsv4kv.bench.tiers import TiersOutcome
    from dsv4kv.bench.transfer import Moved, Outcome


def systems_page(outcomes: "Sequence[systems.Outcome]") -> tb.Page:
    """Whether all outputs are right, and a row per quantity, with the policies side by side."""
    compared = sum(sum(outcome.checks.values()) for outcome in outcomes)
    wrong = sum(len(outcome.failures) for outcome in outcomes)
    names = ", ".join(outcome.system for outcome in outcomes)
    verdict = tb.good(f"all {compared:,} comparisons with the reference are equal: {names}")
    if wrong:
        verdict = tb.bad(f"{wrong:,} of {compared:,} comparisons with the reference failed")
    amounts: dict[tuple[str, str], dict[str, tb.Number]] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            policy, _, name = row.quantity.rpartition(": ")
            amount = tb.size(row.value) if row.unit == "B" else tb.Number(f"{row.value:,.0f}")
            amounts.setdefault((outcome.system, name), {})[policy] = amount
    policies = dict.fromkeys(policy for found in amounts.values() for policy in found)
    rows = [
        (*key, *(found.get(policy, "") for policy in policies)) for key, found in amounts.items()
    ]
    heads = ["system", "quantity", *(policy or "amount" for policy in policies)]
    return tb.Page("Systems", [verdict, "", tb.Table("Systems", heads, rows, keys=2, most=30)])


def transfer_page(config: TransferConfig, outcome: "Outcome") -> tb.Page:
    """What was moved, how long a prompt takes to come, and whether all is right."""
    total, steps = outcome.total, counted(config.decode_steps, "decode step")
    taken = format_duration(outcome.prompt_ns, 2)
    moved = (
        f"{counted(config.timed_tokens, 'token')} are {format_bytes(total.bytes)} in "
        f"{counted(total.pieces, 'piece')}, {total.descriptors:,} where neighbours are merged. A "
        f"prompt of {counted(config.tokens, 'token')}, computed, moved and verified, takes "
        f"{taken} (one run)."
    )
    verdict = tb.good(
        f"all {counted(outcome.pages, 'page')} have the digests they were sent with; {steps} "
        "after the transfer read, bit for bit, what a request reads that stayed"
    )
    if outcome.failures:
        verdict = tb.bad(f"the request differs after {steps}")

    def useful(row: "tuple[str, Moved]") -> tb.Number:
        return tb.percent(row[1].useful_bytes / row[1].bytes if row[1].bytes else None)

    def share(row: "tuple[str, Moved]") -> tb.Number:
        rate, limit = row[1].gbps, outcome.memcpy_gbps
        return tb.percent(divide(rate, limit) if rate and limit else None)

    columns: tb.Columns = [
        ("family", lambda row: row[0]),
        ("bytes", lambda row: tb.size(row[1].bytes)),
        ("useful %", useful),
        ("pieces", lambda row: row[1].pieces),
        ("merged", lambda row: row[1].descriptors),
        ("GB/s", lambda row: row[1].gbps),
        ("% of memcpy", share),
    ]
    families = [(name, moved) for name, moved in outcome.families.items() if moved.bytes]
    note = "pieces: pages of every layer; merged: descriptors once neighbours are one"
    title = "A request's cache, read by the decode side"
    table = tb.Table(title, columns, [*families, ("all", total)], note=note)
    return tb.Page("Transfer", [tb.strong(moved), verdict, "", table])


def tiers_page(outcome: "TiersOutcome") -> tb.Page:
    """The answer, whether all is right, and the prefixes."""
    verdict = tb.good(
        f"all {outcome.checks:,} comparisons are equal: digests, and after further steps "
        "every bit of restored requests and of ones that were never moved"
    )
    if wrong := len(outcome.failures):
        verdict = tb.bad(f"{wrong:,} of {outcome.checks:,} comparisons failed")
    columns: tb.Columns = [
        ("store", lambda row: row.store),
        ("tokens", lambda row: row.tokens),
        ("read", lambda row: tb.size(row.read_bytes)),
        ("/useful", lambda row: row.amplification),
        ("restore ms", lambda row: tb.ms(row.restored)),
        ("compute ms", lambda row: tb.ms(row.computed_ns)),
        ("store ms", lambda row: tb.ms(row.stored)),
    ]
    title = f"Prefixes of {outcome.model}"
    note = f"compute: modelled on {outcome.gpu}; files are read from the disk, not its cache"
    table = tb.Table(title, columns, outcome.prefixes, note=note, keys=2)
    return tb.Page("Tiers", [*map(tb.strong, outcome.answers()), verdict, "", table])
