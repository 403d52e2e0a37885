"""Made-up run records, complete and consistent, for tests of everything that reads records."""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from dsv4kv.config.bench import BenchConfig
from dsv4kv.runs import schema as sc

H200 = sc.GpuFacts(
    name="NVIDIA H200", capability="9.0", multiprocessors=132, memory_bytes=143771 * 2**20,
    l2_bytes=50 * 2**20,
)  # fmt: skip


def make_operation(
    name: str = "gather_topk", layer_type: str = "csa", *, calls: int = 400, gbps: float = 3.0
) -> sc.Operation:
    """Calls of unequal size (1 to 64 entries of 584 B) at about one rate."""
    samples_ns, entries, sizes = map(list, _draw_calls(f"{name} {layer_type}", calls, gbps))
    return sc.Operation(
        name=name, layer_type=layer_type, samples_ns=samples_ns, entries=entries, bytes=sizes
    )


@cache
def _draw_calls(seed: str, calls: int, gbps: float) -> tuple[Sequence[int], ...]:
    """Samples, entries and bytes: drawn once, records of them are made in hundreds of tests."""
    random = Random(seed)
    entries = [random.randint(1, 64) for _ in range(calls)]
    sizes = [2 * 584 * count for count in entries]
    return [round(size / gbps * random.uniform(0.9, 1.1)) for size in sizes], entries, sizes


def make_latency(
    name: str = "step", *, samples: int = 400, median_ns: int = 2_000_000
) -> sc.Latency:
    """Skewed latencies around a median."""
    return sc.Latency(name=name, samples_ns=list(_draw_latencies(name, samples, median_ns)))


@cache
def _draw_latencies(seed: str, samples: int, median_ns: int) -> Sequence[int]:
    random = Random(seed)
    return [round(median_ns * random.lognormvariate(0, 0.1)) for _ in range(samples)]


def make_pool(
    name: str, layer_type: str, layers: int, units: int, unit_bytes: int, **changes: Any
) -> sc.Pool:
    """A pool allocated as predicted."""
    size = layers * units * unit_bytes
    facts = {"predicted_bytes": size, "allocated_bytes": size} | changes
    where: dict[str, Any] = {"name": name, "layer_type": layer_type, "layers": layers}
    return sc.Pool(**where, units=units, unit_bytes=unit_bytes, **facts)


def make_pools() -> list[sc.Pool]:
    """Six layers of v4-flash: 256 blocks of 128 tokens, 8 slots."""
    return [
        make_pool("main", "csa", 2, 256, 19_008),
        make_pool("main", "hca", 2, 256, 1_152),
        make_pool("indexer", "csa", 2, 256, 2_176),
        *(make_pool("window", layer_type, 2, 8, 74_880) for layer_type in ("swa", "csa", "hca")),
        make_pool("state", "csa", 2, 8, 81_920),
        make_pool("state", "hca", 2, 8, 524_288),
        make_pool("tables", "all", 1, 8, 1_024),
    ]


def make_cache(**changes: Any) -> sc.CacheSummary:
    """The cache of ``make_pools``."""
    facts: dict[str, Any] = {
        "model": "v4-flash", "layers": {"swa": 2, "csa": 2, "hca": 2}, "total_layers": 43,
        "block_tokens": 128, "sharing": "model", "state": "ring", "num_blocks": 256,
        "formats": {"main": "fp8_ds_mla", "window": "fp8_ds_mla", "indexer": "mxfp4"},
        "total_blocks": 256, "num_slots": 8, "max_context_tokens": 32_768,
        "bytes_per_token": 335.125, "bytes_per_request": 1_661_696, "pools": make_pools(),
    }  # fmt: skip
    return sc.CacheSummary(**facts | changes)


def make_totals(**changes: Any) -> sc.Totals:
    """A run of 400 steps without trouble."""
    facts = {
        "requests": 64, "rejected": 0, "input_tokens": 61_440, "output_tokens": 8_192,
        "drafted_tokens": 0, "rolled_back_tokens": 0, "steps": 405, "wall_ns": 3_412_000_000,
        "peak_blocks": 87, "peak_rounding_bytes": 312_000, "peak_requests": 8, "blocks_left": 0,
    }  # fmt: skip
    return sc.Totals(**facts | changes)


def make_operations(gbps: float = 3.0) -> list[sc.Operation]:
    """Every kind of operation, on the layer types it runs on."""
    return [
        make_operation("window_insert", "swa", gbps=gbps / 3),
        make_operation("state_append", "csa", gbps=gbps / 2),
        make_operation("flush", "csa", calls=60, gbps=gbps / 20),
        make_operation("indexer_insert", "csa", calls=60, gbps=gbps / 100),
        make_operation("gather_topk", "csa", gbps=gbps),
        make_operation("gather_all", "hca", gbps=gbps * 1.2),
        make_operation("gather_window", "swa", calls=4, gbps=gbps),
    ]


def make_case(**changes: Any) -> sc.Case:
    """A complete case with real data."""
    facts: dict[str, Any] = {
        "axis": {},
        "status": "complete",
        "error": None,
        "config": BenchConfig().model_dump(mode="json"),
        "backend": "cpu",
        "cache": make_cache(),
        "totals": make_totals(),
        "operations": make_operations(),
        "latencies": [
            make_latency("prepare", samples=1200, median_ns=23_000),
            make_latency("admit", samples=64, median_ns=9_000),
            make_latency("release", samples=5, median_ns=4_000),
            make_latency("step", median_ns=7_900_000),
        ],
        "memcpy": sc.Memcpy(bytes=2**29, samples_ns=[52_600_000 + 90_000 * i for i in range(10)]),
        "verification": sc.Verification(
            checks=120, by_operation={"gather_topk": 80, "window_insert": 40}, failures=[]
        ),
    }
    return sc.Case(**facts | changes)


def make_failed_case(error: str = "no block is free", **changes: Any) -> sc.Case:
    """A case whose cache could not be built."""
    facts = dict.fromkeys(("cache", "totals", "memcpy")) | {"operations": [], "latencies": []}
    nothing = sc.Verification(checks=0, by_operation={}, failures=[])
    failed = {"status": "failed", "error": error, "verification": nothing}
    return make_case(**failed | facts | changes)


def make_sweep_cases() -> list[sc.Case]:
    """Block size against concurrency; the last case failed."""
    cases = [
        make_case(
            axis={"cache.block_tokens": block, "workload.concurrency": concurrency},
            operations=make_operations(gbps=3.0 + block / 1000),
            latencies=[
                make_latency("prepare", samples=1200, median_ns=20_000 * 128 // block + 4_000),
                make_latency("step", median_ns=1_000_000 * concurrency),
            ],
            totals=make_totals(peak_blocks=11 * concurrency * 128 // block),
        )
        for block in (128, 256)
        for concurrency in (1, 8)
    ]
    last = {"cache.block_tokens": 256, "workload.concurrency": 64}
    return [*cases, make_failed_case("64 requests need 512 blocks; 256 are free", axis=last)]


def make_environment(**changes: Any) -> sc.Environment:
    """A machine with everything known but a GPU."""
    versions = {"dsv4kv": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.6"}
    facts: dict[str, Any] = {
        "hostname_sha256": "0" * 64, "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
        "python": "3.12.4", "cpu": "AMD EPYC 9554", "cpu_count": 2, "memory_bytes": 24 * 2**30,
        "load_1min": 0.31, "governor": None, "versions": versions | {"cuda": None, "driver": None},
        "variables": {"OMP_NUM_THREADS": "1"}, "git_dirty": True,
        "git_sha": "0123456789abcdef0123456789abcdef01234567",
    }  # fmt: skip
    return sc.Environment(**facts | changes)


def make_record(*cases: sc.Case, **changes: Any) -> sc.RunRecord:
    """A run of these cases, or of one good case; its status is the worst of theirs."""
    told = list(cases) or [make_case()]
    found = {case.status for case in told}
    facts: dict[str, Any] = {
        "run_id": "20261121T041903Z-default-3fa9c1", "started_utc": "2026-11-21T04:19:03Z",
        "ended_utc": "2026-11-21T04:19:09Z", "argv": ["dsv4kv", "bench"],
        "status": next(s for s in ("failed", "incomplete", "complete") if s in found),
        "reproduce": "dsv4kv bench configs/bench/default.yaml --set measure.seed=0",
        "config_source": "configs/bench/default.yaml", "config_sha256": "1" * 64,
        "trace_source": "builtin:chat", "trace_sha256": "2" * 64, "seed": 0,
        "environment": make_environment(), "cases": told,
    }  # fmt: skip
    return sc.RunRecord(**facts | changes)
