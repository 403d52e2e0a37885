"""What a run has done and found, in the record's terms."""

from collections.abc import Mapping, Sequence

from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig
from dsv4kv.measure.recorder import Recorder
from dsv4kv.model.budget import bytes_per_token
from dsv4kv.model.plan import CachePlan
from dsv4kv.report.record import (
    CacheSummary,
    Latency,
    Operation,
    Pool,
    Totals,
    Verification,
)
from dsv4kv.workload.verifier import Verifier


def describe_cache(config: BenchConfig, plan: CachePlan, manager: KVCacheManager) -> CacheSummary:
    """The cache that was built, planned beside allocated."""
    layers: dict[str, int] = {}
    for schema in plan.schemas:
        layers[schema.layer.attn.value] = layers.get(schema.layer.attn.value, 0) + 1
    first = {"main": None, "window": None, "indexer": None} | {
        place: page.format.name
        for schema in plan.schemas
        for place, page in (
            ("main", schema.main),
            ("window", schema.window),
            ("indexer", schema.indexer),
        )
        if page
    }
    allocated = manager.memory_by_pool()
    pools = [
        Pool(
            name=pool.name,
            layer_type=pool.layer_type,
            layers=pool.layers,
            units=pool.units,
            unit_bytes=pool.unit_bytes,
            predicted_bytes=pool.total_bytes,
            allocated_bytes=allocated.get((pool.name, pool.layer_type), 0),
        )
        for pool in plan.pools
        if config.workload.data == "real" or pool.name == "tables"
    ]
    return CacheSummary(
        model=plan.config.name,
        layers=layers,
        total_layers=plan.config.num_layers,
        block_tokens=config.cache.block_tokens,
        sharing=config.cache.sharing,
        formats={place: name for place, name in first.items() if name},
        state=config.cache.state,
        num_blocks=max(plan.num_blocks.values(), default=0),
        total_blocks=sum(plan.num_blocks[group.name] * group.lanes for group in plan.groups),
        num_slots=plan.num_slots,
        max_context_tokens=plan.max_context_tokens,
        bytes_per_token=float(bytes_per_token(plan.schemas)),
        bytes_per_request=sum(schema.slot_bytes for schema in plan.schemas),
        pools=pools,
    )


def find_problem(cache: CacheSummary, totals: Totals, verifier: Verifier | None) -> str | None:
    """The first thing that must not happen and did."""
    for pool in cache.pools:
        if pool.predicted_bytes != pool.allocated_bytes:
            return (
                f"the {pool.name} pools of {pool.layer_type} layers take {pool.allocated_bytes} B "
                f"where the plan says {pool.predicted_bytes} B."
            )
    if verifier is not None and verifier.failures:
        return f"{len(verifier.failures)} sampled outputs differ from the reference."
    if totals.blocks_left:
        return f"{totals.blocks_left} blocks are still held although every request has ended."
    if totals.rejected and not totals.peak_requests:
        return (
            f"none of {totals.rejected} requests fits into the cache: raise "
            "cache.max_context_tokens or cache.num_blocks."
        )
    return None


def list_operations(recorder: Recorder) -> list[Operation]:
    """Operations that were timed one by one."""
    # Ctrl-C may fall between the three appends of a sample; bytes is the last.
    return [
        Operation(
            name=name,
            layer_type=layer_type,
            samples_ns=samples.ns[: len(samples.bytes)].tolist(),
            entries=samples.entries[: len(samples.bytes)].tolist(),
            bytes=samples.bytes.tolist(),
        )
        for (name, layer_type), samples in sorted(recorder.operations.items())
    ]


def list_latencies(
    recorder: Recorder, device_ns: Mapping[str, Sequence[int]] | None = None
) -> list[Latency]:
    """Latencies on the host, and spans on the device's clock."""
    found = {name: samples.tolist() for name, samples in recorder.latencies.items()}
    found |= {name: list(samples) for name, samples in (device_ns or {}).items()}
    return [Latency(name=name, samples_ns=found[name]) for name in sorted(found)]


def describe_verification(verifier: Verifier | None) -> Verification:
    """The checks made on the way."""
    checks = verifier.checks if verifier else {}
    return Verification(
        checks=sum(checks.values()),
        by_operation=dict(sorted(checks.items())),
        failures=verifier.failures if verifier else [],
    )
