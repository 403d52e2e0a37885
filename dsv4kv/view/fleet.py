"""A fleet: what its replicas found together, what each did, and what it costs."""

from collections.abc import Iterator

from dsv4kv.record.fleet import FleetReplica, ReplayFleet
from dsv4kv.record.schema import Totals
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.cells import format_number
from dsv4kv.view.table import ABSENT, Facts, Part, Table, names, numbers

_MILLION = 1e6


def fleet_parts(fleet: ReplayFleet, totals: Totals) -> Iterator[Part]:
    """Everything about a fleet."""
    yield fleet_facts(fleet, totals)
    yield ""
    yield replicas_table(fleet, totals)


def fleet_facts(fleet: ReplayFleet, totals: Totals) -> Facts:
    """What it found, how even it was, and what it costs, in a line each."""
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
        "goodput": _good_text(fleet, totals),
        "costs": _cost_text(fleet, totals),
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


def _good_text(fleet: ReplayFleet, totals: Totals) -> str:
    """Requests that kept the SLO, and how many a second; without one all that were served."""
    wall_s = totals.wall_ns / 1e9
    rate = f"{format_number(fleet.good_requests / wall_s)} a second" if wall_s else ABSENT
    if not fleet.slo:
        return f"{rate}; no fleet.slo is given, so every request served is good"
    limits = " and ".join(f"{n} ≤ {format_duration(ns)}" for n, ns in fleet.slo.items())
    part = share(fleet.good_requests, totals.requests)
    return (
        f"{fleet.good_requests:,} of {totals.requests:,} requests ({part}) with {limits}; {rate}"
    )


def _cost_text(fleet: ReplayFleet, totals: Totals) -> str:
    hours = fleet.gpu_hours(totals.wall_ns)
    text = f"{format_number(hours)} GPU-hours"
    if (each := hours_per_million(fleet, totals)) is None:
        return text
    text += f", {format_number(each)} for 10^6 tokens of answers"
    if fleet.gpu_hour_price is not None:
        money = hours * fleet.gpu_hour_price, each * fleet.gpu_hour_price
        text += f"; in money {money[0]:,.2f}, {money[1]:,.2f} for 10^6"
    return text


def hours_per_million(fleet: ReplayFleet, totals: Totals) -> float | None:
    """GPU-hours for a million tokens that were generated."""
    hours = fleet.gpu_hours(totals.wall_ns)
    return hours / totals.output_tokens * _MILLION if totals.output_tokens else None


def replicas_table(fleet: ReplayFleet, totals: Totals) -> Table:
    """What every replica did."""
    is_split = fleet.decode_router is not None
    return Table(
        "Replicas",
        [
            *names("replica"),
            *numbers("GPUs", "requests", "saved tokens", "computed tokens", "busy"),
            *numbers("mean wait"),
            *numbers("most in slots", "cached", minor=True),
            *(numbers("sent") if is_split else ()),
        ],
        [
            (*_cells(replica, totals), *((_sent(replica),) if is_split else ()))
            for replica in fleet.replicas
        ],
        note="waits are those for a slot; busy is of the time of the whole replay",
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
