"""What a real cache has done and found, in the record's terms."""

from dsv4kv.bench.summary import describe_cache
from dsv4kv.replay.data.places import KINDS
from dsv4kv.replay.data.serving import RealData
from dsv4kv.report.record import Pool, Verification
from dsv4kv.report.replay_record import CacheStepTimes, ReplayData


def describe_data(data: RealData) -> ReplayData:
    """Times of the steps, and what was compared."""
    by_kind = data.parts.check.by_kind
    return ReplayData(
        steps=[
            CacheStepTimes(kind=kind, measured_ns=times.measured_ns, modelled_ns=times.modelled_ns)
            for kind, times in data.times.by_kind.items()
            if times.measured_ns
        ],
        compared={kind: by_kind[kind] for kind in KINDS if by_kind[kind]},
        spare_blocks=data.rules.spare_blocks,
    )


def describe_checks(data: RealData) -> Verification:
    """All comparisons with a run without reuse."""
    check = data.parts.check
    return Verification(
        checks=check.by_operation.total(),
        by_operation=dict(sorted(check.by_operation.items())),
        failures=check.failures,
    )


def list_pools(data: RealData) -> list[Pool]:
    """Every pool, planned beside allocated."""
    manager = data.parts.manager
    return describe_cache(data.parts.config, manager.plan, manager).pools
