"""Step: what ``dsv4kv doctor --check-gpu`` finds."""

from dataclasses import asdict
from unittest.mock import patch

from dsv4kv.diagnose import gpu
from visit.desk import Desk

SMALL = (
    "model.layers=[2,3]",
    "workload.context=256",
    "workload.concurrency=2",
    "workload.synthetic.requests=2",
    "workload.decode=graph",
    "measure.memcpy_bytes=1MiB",
    "cache.max_context_tokens=1024",
)


def run(desk: Desk) -> None:
    """Answer the question of ``questions.DOCTOR``; a note holds each row."""
    with desk.place() as place:
        if place.small:
            with patch.object(gpu, "find_device", lambda _: place.device):
                report = gpu.examine_gpu(SMALL)
        else:
            report = gpu.examine_gpu()
        for row in report.rows:
            desk.note("doctor", **asdict(row))
        desk.answer("doctor_wrong", len(report.wrong), wrong=report.wrong, checks=report.checks)
