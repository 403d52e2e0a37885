"""A fleet: what its replicas found together, what each did, and what it costs."""

from collections.abc import Iterator

from dsv4kv.runs.quantities import clock_factor
from dsv4kv.runs.replay import FleetReplica, ReplayFleet
from dsv4kv.runs.schema import Case, Totals
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.cells import format_clocked, format_factor
from dsv4kv.view.table import ABSENT, Facts, Part, Table, names, numbers, prose

_MILLION = 1e6


def fleet_parts(fleet: ReplayFleet, totals: Totals, case: Case) -> Iterator[Part]:
    """Everything about the fleet of a case."""
    yield fleet_facts(fleet, totals, clock_factor(case, "latency"))
    yield ""
    yield replicas_table(fleet, totals, clock_factor(case, "queueing"))


def fleet_facts(fleet: ReplayFleet, totals: Totals, factor: float | None = None) -> Facts:
    """What it found, how even it was, and what it costs, in a line each.

    ``factor`` is what the time of the replay is right within.
    """
    rows = {
        "fleet": _servers_text(fleet),
        "hit rate": (
            f"{share(fleet.saved_tokens, fleet.prompt_tokens)} of prompt tokens; one pool of all "
            f"blocks {share(fleet.pooled_saved_tokens, fleet.prompt_tokens)}, one that forgets "
            f"nothing {share(fleet.ideal_saved_tokens, fleet.prompt_tokens)}"
        ),
        "held twice": (
            f"{format_bytes(fleet.repeated_bytes)} of the {format_bytes(fleet.held_bytes)} that "
            "replicas have cached at the end"
        ),
        "goodput": _good_text(fleet, totals, factor),
        "costs": _cost_text(fleet, totals, factor),
    }
    if fleet.imbalance is not None:
        rows["imbalance"] = f"the busiest replica works {fleet.imbalance:.2f} times the mean"
    sent = sum(replica.sent_bytes for replica in fleet.replicas)
    if sent:
        waited = sum(replica.sending_waited_ns for replica in fleet.replicas)
        rows["sent"] = (
            f"{format_bytes(sent)} to decode replicas by one rank, every rank as much; prompts "
            f"waited {format_duration(waited)} in all to be sent"
        )
    return Facts(rows)


def _servers_text(fleet: ReplayFleet) -> str:
    roles = [replica.role for replica in fleet.replicas]
    if fleet.decode_router is None:
        servers = f"{counted(len(roles), 'replica')} behind {fleet.router}"
    else:
        servers = (
            f"{roles.count('prefill')} prefill behind {fleet.router}, "
            f"{roles.count('decode')} decode behind {fleet.decode_router}"
        )
    return f"{servers}; {counted(fleet.gpus, 'GPU')}"


def _good_text(fleet: ReplayFleet, totals: Totals, factor: float | None) -> str:
    """Of all requests those that kept the SLO, and how many a second; without one the served."""
    wall_s = totals.wall_ns / 1e9
    rate = ABSENT
    if wall_s:
        number = format_clocked(fleet.good_requests / wall_s, factor)
        rate = f"{number} a second{_within(factor)}"
    if not fleet.slo:
        return f"{rate}; no fleet.slo is given, so every request served is good"
    limits = " and ".join(f"{n} ≤ {format_duration(ns)}" for n, ns in fleet.slo.items())
    asked = totals.requests + totals.rejected
    part = share(fleet.good_requests, asked)
    return f"{fleet.good_requests:,} of {asked:,} requests ({part}) with {limits}; {rate}"


def _cost_text(fleet: ReplayFleet, totals: Totals, factor: float | None) -> str:
    hours = fleet.gpu_hours(totals.wall_ns)
    text = f"{format_clocked(hours, factor)} GPU-hours"
    if (each := hours_per_million(fleet, totals)) is None:
        return f"{text}{_within(factor)}"
    text += f", {format_clocked(each, factor)} for 10^6 tokens of answers"
    if (price := fleet.gpu_hour_price) is not None:
        paid, paid_each = (
            format_clocked(hours * price, factor),
            format_clocked(each * price, factor),
        )
        text += f"; in money {paid}, {paid_each} for 10^6"
    return f"{text}{_within(factor)}"


def _within(factor: float | None) -> str:
    """What nine of ten such numbers are within, where that is known."""
    return "" if factor is None else f" ({format_factor(factor)})"


def hours_per_million(fleet: ReplayFleet, totals: Totals) -> float | None:
    """GPU-hours for a million tokens that were generated."""
    hours = fleet.gpu_hours(totals.wall_ns)
    return hours / totals.output_tokens * _MILLION if totals.output_tokens else None


def replicas_table(fleet: ReplayFleet, totals: Totals, factor: float | None = None) -> Table:
    """What every replica did; ``factor`` is what waits are right within."""
    is_split = fleet.decode_router is not None
    differs = any(replica.settings for replica in fleet.replicas)
    return Table(
        "Replicas",
        [
            *names("replica"),
            *numbers("GPUs", "requests", "saved tokens", "computed tokens", "busy"),
            *numbers("mean wait"),
            *numbers("most in slots", "cached", minor=True),
            *(numbers("sent") if is_split else ()),
            *(prose("differs in") if differs else ()),
        ],
        [
            (
                *_cells(replica, totals),
                *((_sent(replica),) if is_split else ()),
                *((replica.settings,) if differs else ()),
            )
            for replica in fleet.replicas
        ],
        note=f"waits are those for a slot{_within(factor)}; "
        "busy is of the time of the whole replay",
    )


def _cells(replica: FleetReplica, totals: Totals) -> tuple[str, ...]:
    computes = replica.role != "decode"
    wait = format_duration(replica.queued_ns / replica.requests) if replica.requests else ABSENT
    return (
        replica.name,
        str(replica.gpus),
        f"{replica.requests:,}",
        share(replica.saved_tokens, replica.prompt_tokens) if computes else ABSENT,
        f"{replica.computed_tokens:,}",
        share(replica.busy_ns, totals.wall_ns),
        wait,
        f"{replica.peak_requests:,}",
        format_bytes(replica.held_bytes),
    )


def _sent(replica: FleetReplica) -> str:
    return format_bytes(replica.sent_bytes) if replica.role == "prefill" else ABSENT


def share(part: int, whole: int) -> str:
    """Part of a whole in percent."""
    return f"{part / whole:.1%}" if whole else ABSENT
