"""A minute on the GPU at hand: whether operations are right, and how fast for that GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from dsv4kv.bench import predict
from dsv4kv.bench.build import plan_from
from dsv4kv.bench.device import CudaDevice, describe_gpu, find_device
from dsv4kv.bench.predict import Card
from dsv4kv.bench.run import run_case
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import load_config
from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops import cuda
from dsv4kv.ops.check import check_scenes
from dsv4kv.ops.scenes import scenes_of
from dsv4kv.runs.schema import Case

REQUESTS, CONTEXT = 64, 8192
TOKENS = CONTEXT + 128  # room for steps, and what operations are timed on
_SEED = 7
_CLOCK_GHZ = 1.7  # where torch does not know it

# A CSA and an HCA layer of V4-Pro: 2 GiB with their states, rings and buffers.
_SETTINGS = (
    "model.layers=[2,3]",
    f"workload.context={CONTEXT}",
    f"cache.max_context_tokens={TOKENS}",
    f"cache.num_blocks={4 * REQUESTS * TOKENS // 128}",  # calls take turns over four tables
    f"workload.concurrency={REQUESTS}",
    f"workload.synthetic.requests={REQUESTS}",
    "workload.decode=graph",
    "measure.memcpy_bytes=268435456",
)
STEPS = {
    "engine": ("workload.step=engine", "measure.figures_seconds=25"),
    "gather": ("workload.step=gather", "measure.figures_seconds=10"),
}
"""The configurations that are run, with their settings and shares of the minute."""


@dataclass(frozen=True)
class Row:
    """A time that the GPU should take, and takes; microseconds."""

    name: str
    predicted_us: float | None  # None for a copy, by which others are predicted
    measured_us: float | None  # None where there was no time for it
    roofline_us: float | None = None  # least time of its bytes and products


@dataclass(frozen=True)
class GpuReport:
    """What a GPU was found to do."""

    card: Card  # with the copy that was measured
    wrong: Sequence[str]  # a sentence for each operation that differs from the reference
    checks: int  # operations that were held against it, and outputs of steps
    rows: Sequence[Row]


def examine_gpu(settings: Sequence[str] = _SETTINGS) -> GpuReport:
    """Check and time the GPU; raises ``CudaUnavailable`` where there is none."""
    device, facts = find_device("cuda"), describe_gpu("cuda")
    if device is None:
        raise CudaUnavailable("doctor --check-gpu looks at a GPU, and device cuda is none here.")
    configs = {name: load_config("gpu", [*settings, *own]).config for name, own in STEPS.items()}
    scenes = scenes_of(plan_from(configs["engine"]), _SEED)
    wrong = list(check_scenes("cuda", cuda, scenes, device.device, _SEED))
    cases = {name: run_case({}, config, lambda _: None) for name, config in configs.items()}
    for name, case in cases.items():
        wrong += [f"a {name} step: {case.error}"] if case.error else []
    card = _card(facts.name if facts else "GPU", device, cases["engine"])
    checks = len(scenes) + sum(case.verification.checks for case in cases.values())
    rows = list(_list_rows(configs, cases, card))
    return GpuReport(card, wrong, checks, rows)


def _card(name: str, device: CudaDevice, case: Case) -> Card:
    """The GPU with its faster copy; an H200's numbers for what torch does not say."""
    card = replace(predict.H200, name=name, architecture=device.architecture)
    copies = [
        each.bytes / median(each.samples_ns)
        for each in case.peaks
        if each.name in ("copy", "torch_copy")
    ]
    if copies:
        card = replace(card, copy_gbps=max(copies))
    if device.device.type == "cuda":
        facts = torch.cuda.get_device_properties(device.device)
        clock = getattr(facts, "clock_rate", None)  # kHz
        ghz = clock / 1e6 if clock else _CLOCK_GHZ
        card = replace(card, multiprocessors=facts.multi_processor_count, clock_ghz=ghz)
    return card


def _list_rows(
    configs: dict[str, BenchConfig], cases: dict[str, Case], card: Card
) -> Iterator[Row]:
    for peak in cases["engine"].peaks:
        least = peak.bytes / card.copy_gbps / 1e3 if "copy" in peak.name else None
        yield Row(f"{peak.name} of {peak.bytes / 1e9:.2f} GB", None, _us(peak.samples_ns), least)
    shown: set[tuple[str, str]] = set()
    for name, case in cases.items():
        step = predict.plan_step(configs[name], card, TOKENS)
        timed = {
            (each.name, each.layer_type): each.samples_ns
            for each in reversed(case.operations)  # of two, the first
            if each.temperature != "hot"
        }
        for each in step:
            key = each.name, each.layer_type
            if each.name != "tables" and key not in shown:
                least = card.roofline_ns(each.bytes, each.flops) / 1e3
                predicted, measured = each.ns(card) / 1e3, _us(timed.get(key, []))
                yield Row(f"{each.name} {each.layer_type}", predicted, measured, least)
            shown.add(key)
        spans = next((e for e in case.latencies if e.name == "decode_graph_device"), None)
        predicted = sum(each.ns(card) for each in step) / 1e3
        least = sum(card.roofline_ns(each.bytes, each.flops) for each in step) / 1e3
        measured = _us(spans.samples_ns) if spans else None
        yield Row(f"{name} step, a graph", predicted, measured, least)


def _us(samples_ns: Sequence[int]) -> float | None:
    return median(samples_ns) / 1e3 if samples_ns else None
