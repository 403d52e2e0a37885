"""What byte models and static checks cannot tell about the kernels: measured on one GPU.

    python results/h200/questions.py [FILE]

Prints a table and writes a run record (questions.json beside this file, or FILE), which
``dsv4kv report`` shows again. Entry counts, splits and unrolls are swept at fixed work, every call
on entries of its own where the pool is large enough.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from dsv4kv.bench.case import unbuilt_case
from dsv4kv.bench.device import CudaDevice, describe_gpu, find_device
from dsv4kv.bench.peaks import measure_peaks
from dsv4kv.bench.replay_timing import CallTimer
from dsv4kv.config.bench import BenchConfig
from dsv4kv.measure.environment import capture_environment
from dsv4kv.model import load_model
from dsv4kv.model.formats import PageLayout, entry_format
from dsv4kv.model.schedule import build_schedule
from dsv4kv.ops import traffic
from dsv4kv.ops.compressor import Compressor, random_compressor
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.kernels.gather import plan_gather_entries
from dsv4kv.ops.kernels.insert import plan_entry_insert
from dsv4kv.ops.kernels.launch import Launch
from dsv4kv.ops.kernels.state import plan_compress_chunk, plan_flush
from dsv4kv.ops.storage import PageStore
from dsv4kv.report.names import new_run_id
from dsv4kv.report.record import Environment, Operation, RunRecord
from dsv4kv.report.store import dumps
from dsv4kv.report.tables import operations_table

MAIN = entry_format("main", "fp8_ds_mla")
PAGE_ENTRIES = 32
CALLS = 8  # in one graph, each on entries of its own


@dataclass(frozen=True)
class Sizes:
    """How large the questions are.

    Attributes:
        gathers: Entries of a gather.
        inserts: Entries of an insert.
        tokens: Tokens whose entries are flushed.
        peak_bytes: Of the plain copies.
    """

    gathers: Sequence[int] = (8_192, 32_768, 131_072, 1_048_576)
    inserts: Sequence[int] = (8_192, 131_072)
    tokens: int = 8_192
    peak_bytes: int = 1 << 30


def ask(device: CudaDevice, timer: CallTimer, sizes: Sizes) -> Iterator[Operation]:
    """Every question, as rows of a record."""
    yield from _ask_gathers(device.device, timer, sizes)
    yield from _ask_inserts(device.device, timer, sizes)
    yield from _ask_flushes(device.device, timer, sizes)


def _ask_gathers(device: torch.device, timer: CallTimer, sizes: Sizes) -> Iterator[Operation]:
    store = _full_store(CALLS * max(sizes.gathers), device)
    out = torch.empty(max(sizes.gathers), MAIN.dims, dtype=torch.bfloat16, device=device)
    for count in sizes.gathers:
        for order, entries in _orders(store.num_entries, device):
            rows = [entries[k * count : (k + 1) * count].int() for k in range(CALLS)]
            for unroll in (1, 2, 4):
                plans = [plan_gather_entries(store, r, out[:count], unroll=unroll) for r in rows]
                moved = traffic.gather_topk_bytes(MAIN, count, count)
                yield _time(timer, f"gather {order} u{unroll}", plans, count, moved)


def _ask_inserts(device: torch.device, timer: CallTimer, sizes: Sizes) -> Iterator[Operation]:
    store = _full_store(CALLS * max(sizes.inserts), device)
    values = torch.randn(max(sizes.inserts), MAIN.dims, device=device).bfloat16()
    for count in sizes.inserts:
        for order, entries in _orders(store.num_entries, device):
            plans = [
                plan_entry_insert(store, values[:count], entries[k * count : (k + 1) * count])
                for k in range(CALLS)
            ]
            moved = traffic.insert_bytes(MAIN, count)
            yield _time(timer, f"insert {order}", plans, count, moved)


def _ask_flushes(device: torch.device, timer: CallTimer, sizes: Sizes) -> Iterator[Operation]:
    for name, layer, splits in (("csa", 2, (1, 2, 4)), ("hca", 3, (1, 2, 4, 8))):
        compressor = _compressor(layer, device)
        groups = sizes.tokens // compressor.ratio
        store = _full_store(groups, device)
        entries = torch.arange(groups, device=device)
        kv, score = (
            torch.randn(sizes.tokens, compressor.channels, device=device) for _ in range(2)
        )
        rows = 2 * compressor.ratio if compressor.overlap else compressor.ratio
        state = torch.zeros(groups, 2, rows, compressor.channels, device=device)
        ends = torch.full((groups,), 2 * compressor.ratio - 1, device=device)
        chunk = torch.tensor([0, 0, sizes.tokens], device=device)
        for split in splits:
            scratch = torch.empty(groups, compressor.dim, device=device)
            flush, chunks = (
                partial(plan, compressor, state, split=split, scratch=scratch)
                for plan in (plan_flush, plan_compress_chunk)
            )
            plans = flush(entries, ends, store, entries)
            moved = traffic.flush_bytes(compressor, MAIN, groups, online=False)
            yield _time(timer, f"flush split {split}", plans, groups, moved, name, len(plans))
            plans = chunks(kv, score, chunk, store, entries)
            moved = traffic.compress_chunk_bytes(compressor, MAIN, sizes.tokens, groups, rows)
            chunk_name = f"compress_chunk split {split}"
            yield _time(timer, chunk_name, plans, sizes.tokens, moved, name, len(plans))


def _orders(count: int, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    yield "in order", torch.arange(count, device=device)
    yield "scattered", torch.randperm(count, generator=generator).to(device)


def _compressor(layer: int, device: torch.device) -> Compressor:
    model = load_model("v4-pro")
    spec = build_schedule(model)[layer]
    return random_compressor(model, spec, torch.Generator().manual_seed(0)).to(device)


def _full_store(entries: int, device: torch.device) -> PageStore:
    """Pages of quantised normal data."""
    layout = PageLayout(MAIN, PAGE_ENTRIES)
    store = PageStore.allocate(layout, -(-entries // PAGE_ENTRIES), device)
    values = torch.randn(8192, MAIN.dims, device=device).bfloat16()
    for first in range(0, store.num_entries, len(values)):
        rows = torch.arange(first, min(first + len(values), store.num_entries), device=device)
        prepare(plan_entry_insert(store, values[: len(rows)], rows))()
    return store


def _time(
    timer: CallTimer,
    name: str,
    plans: Sequence[Launch],
    entries: int,
    moved: int,
    layer_type: str = "–",
    launches_each: int = 1,
) -> Operation:
    launches = [prepare(plan) for plan in plans]
    starts = range(0, len(launches), launches_each)
    calls = [partial(_run_all, launches[i : i + launches_each]) for i in starts]
    samples = timer.time(calls, f"{name}, {entries:,}", layer_type)
    return Operation(
        name=f"{name}, {entries:,}",
        layer_type=layer_type,
        samples_ns=samples,
        entries=[entries] * len(samples),
        bytes=[moved] * len(samples),
        temperature="cold" if len(calls) > 1 else "hot",
        distinct_bytes=moved * len(calls),
    )


def _run_all(launches: Sequence[Callable[[], None]]) -> None:
    for launch in launches:
        launch()


def answer(device: CudaDevice, sizes: Sizes) -> RunRecord:
    """Ask everything and keep it as a run record."""
    started, config = datetime.now(UTC), BenchConfig(name="questions", device="cuda")
    timer = CallTimer(device)
    rows = list(ask(device, timer, sizes))
    case = unbuilt_case({}, config, "incomplete", None).model_copy(
        update={
            "status": "complete",
            "device": "cuda",
            "backend": "cuda",
            "operations": rows,
            "peaks": measure_peaks(device, sizes.peak_bytes, timer),
        }
    )
    return RunRecord(
        run_id=new_run_id(config.name, started),
        started_utc=started.isoformat(timespec="seconds"),
        ended_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        status="complete",
        argv=sys.argv,
        reproduce="python results/h200/questions.py",
        config_source="results/h200/questions.py",
        config_sha256="",
        trace_source=None,
        trace_sha256=None,
        seed=0,
        environment=Environment(**capture_environment(), gpu=describe_gpu("cuda")),
        cases=[case],
    )


def main() -> None:
    """Ask, print, save."""
    device = find_device("cuda")
    assert device is not None
    record = answer(device, Sizes())
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("questions.json")
    target.write_text(dumps(record))
    Console(width=140).print(operations_table(record.cases[0]))


if __name__ == "__main__":
    main()
