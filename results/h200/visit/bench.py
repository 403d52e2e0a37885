"""Steps: ``dsv4kv bench gpu`` of so many requests, or of 64 whose tables kernels keep."""

import os
import sys
from pathlib import Path

from dsv4kv.cli import main
from dsv4kv.runs.schema import Case
from dsv4kv.runs.statistics import summarize
from dsv4kv.runs.store import load_record
from visit.desk import Desk

_SMALL = (
    "workload.synthetic.requests=2",
    "workload.synthetic.input.low=20",
    "workload.synthetic.input.high=150",
    "workload.synthetic.output.low=3",
    "workload.synthetic.output.high=8",
    "cache.num_blocks=8",
    f"model.layers={'[2,3]' if os.environ.get('DSV4KV_FULL') else '[3]'}",
    "workload.decode=both",
    "measure.warmup_steps=1",
    "measure.verify_every=2",
    "measure.memcpy_bytes=1MiB",
    "device=cuda",
)


def run(desk: Desk, batch: str) -> None:
    """Answer the questions of ``questions.BENCH_64`` and its like."""
    requests = int(batch)
    settings: list[str] = []
    if desk.small:
        settings += _SMALL
    else:
        settings += [f"measure.figures_seconds={60 if batch == '64' else 15}"]
        settings += [f"workload.concurrency={requests}"]
        settings += [f"workload.synthetic.requests={2 * requests}"]
    folder = desk.folder / desk.step.name
    words = [word for each in settings for word in ("--set", each)]
    sys.argv = ["dsv4kv", "bench", "smoke" if desk.small else "gpu", *words, "--out", str(folder)]
    with desk.place():
        try:
            main()
        except SystemExit as end:
            desk.note("bench", exit_code=end.code)
        for case in _cases(folder):
            _answer(desk, case, batch)


def _cases(folder: Path) -> list[Case]:
    return [case for path in folder.glob("2*.json") for case in load_record(path).cases]


def _answer(desk: Desk, case: Case, batch: str) -> None:
    wrong = len(case.verification.failures)
    if case.status == "failed":
        wrong = max(1, wrong)
    desk.answer(f"wrong_{batch}", wrong, status=case.status, error=case.error)
    _answer_latency(desk, case, f"graph_{batch}", "decode_graph_device", 1e6)
    _answer_latency(desk, case, f"host_{batch}", "decode_graph_host", 1e3)
    _answer_latency(desk, case, f"eager_{batch}", "decode_eager_host", 1e6)
    for each in case.operations:
        name = f"{each.name} {each.layer_type} {each.temperature or ''}".strip()
        median = summarize(each.samples_ns).median
        desk.note("operation", name=name, median_ns=median, bytes=each.bytes[0])


def _answer_latency(desk: Desk, case: Case, name: str, latency: str, unit_ns: float) -> None:
    samples = next((each.samples_ns for each in case.latencies if each.name == latency), [])
    if samples:
        told = summarize(samples)
        ends = [end / unit_ns for end in (told.ci_low, told.ci_high) if end is not None]
        desk.answer(name, told.median / unit_ns, ends or None, samples=told.n)
