"""A fleet: hit rate, balance and cost of its replicas together, and what each did."""

from dsv4kv.runs.replay import FleetReplica, ReplayFleet
from dsv4kv.runs.schema import Totals
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.quantity import format_clocked, format_factor, share
from dsv4kv.view.table import ABSENT, Facts, Read, Table


def fleet_facts(fleet: ReplayFleet, totals: Totals, factor: float | None = None) -> Facts:
    """Hit rate, balance, goodput and cost; ``factor`` is the error of the replay's time."""
    error = "" if factor is None else f" (90 % error {format_factor(factor)})"
    asked = totals.requests + totals.rejected
    hours, each = fleet.gpu_hours(totals.wall_ns), hours_per_million(fleet, totals)
    costs = [
        f"{format_clocked(hours * scale, factor)} {unit}"
        + (f", {format_clocked(each * scale, factor)} for 10^6 output tokens" if each else "")
        for scale, unit in ((1.0, "GPU-hours"), (fleet.gpu_hour_price, "USD"))
        if scale
    ]
    hits = [
        share(tokens, fleet.prompt_tokens)
        for tokens in (fleet.saved_tokens, fleet.pooled_saved_tokens, fleet.ideal_saved_tokens)
    ]
    rows = {
        "fleet": name_servers(fleet),
        "hit rate": f"{hits[0]}; one pool of all blocks {hits[1]}, unlimited pool {hits[2]}",
        "duplicates": (
            f"{format_bytes(fleet.repeated_bytes)} of {format_bytes(fleet.held_bytes)} cached at "
            "the end"
        ),
        "costs": f"{'; '.join(costs)}{error}",
    }
    if totals.wall_ns:
        rate = format_clocked(fleet.good_requests / totals.wall_ns * 1e9, factor)
        rows["goodput"] = f"{rate} requests/s{error}"
        if fleet.slo:
            limits = " and ".join(f"{n} ≤ {format_duration(ns)}" for n, ns in fleet.slo.items())
            part = f"{fleet.good_requests:,} of {asked:,} requests"
            part += f" ({share(fleet.good_requests, asked)})"
            rows["goodput"] += f"; {part} within {limits}"
    if fleet.imbalance is not None:
        rows["imbalance"] = f"the busiest replica works {fleet.imbalance:.2f} × the mean"
    if sent := sum(replica.sent_bytes for replica in fleet.replicas):
        waited = format_duration(sum(replica.sending_waited_ns for replica in fleet.replicas))
        rows["sent"] = (
            f"{format_bytes(sent)} from each prefill rank to decode replicas; prompts waited "
            f"{waited} in total"
        )
    return Facts(rows)


def name_servers(fleet: ReplayFleet) -> str:
    """``2 replicas behind dynamo; 16 GPUs``."""
    roles = [replica.role for replica in fleet.replicas]
    servers = f"{counted(len(roles), 'replica')} behind {fleet.router}"
    if fleet.decode_router is not None:
        servers = (
            f"{roles.count('prefill')} prefill behind {fleet.router}, "
            f"{roles.count('decode')} decode behind {fleet.decode_router}"
        )
    return f"{servers}; {counted(fleet.gpus, 'GPU')}"


def hours_per_million(fleet: ReplayFleet, totals: Totals) -> float | None:
    """GPU-hours for a million output tokens."""
    hours = fleet.gpu_hours(totals.wall_ns)
    return hours / totals.output_tokens * 1e6 if totals.output_tokens else None


def replicas_table(
    fleet: ReplayFleet,
    totals: Totals,
    factor: float | None = None,
    limit: int | None = None,
) -> Table:
    """What every replica did, at most ``limit``; ``factor`` is the error of queue waits."""
    columns: list[tuple[str, Read]] = [
        ("replica", lambda r: r.name),
        ("GPUs", lambda r: str(r.gpus)),
        ("requests", lambda r: f"{r.requests:,}"),
        ("hit rate", lambda r: share(r.saved_tokens, r.prompt_tokens) if _computes(r) else ABSENT),
        ("computed tokens", lambda r: f"{r.computed_tokens:,}"),
        ("busy", lambda r: share(r.busy_ns, totals.wall_ns)),
        ("queue wait", lambda r: format_duration(r.queued_ns / max(r.requests, 1))),
        ("peak requests", lambda r: f"{r.peak_requests:,}"),
        ("cached", lambda r: format_bytes(r.held_bytes)),
    ]
    if fleet.decode_router is not None:
        columns.append(("sent", lambda r: format_bytes(r.sent_bytes) if _computes(r) else ABSENT))
    if any(replica.settings for replica in fleet.replicas):
        columns.append(("settings", lambda r: r.settings))
    error = "" if factor is None else f", 90 % error {format_factor(factor)}"
    rows = fleet.replicas
    if limit and len(rows) > limit:
        rows = sorted(rows, key=lambda replica: -replica.busy_ns)[:limit]
    hidden = len(fleet.replicas) - len(rows)
    return Table(
        "Replicas",
        columns,
        rows,
        note=f"busy: share of the whole replay; mean queue wait{error}",
        caption=f"and {hidden} less busy replicas" if hidden else "",
    )


def _computes(replica: FleetReplica) -> bool:
    return replica.role != "decode"
