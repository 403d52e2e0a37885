"""``doctor --check-gpu``: on the kernels' CPU twin, and its sentence where there is no GPU."""

import json
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from typer.testing import CliRunner

from dsv4kv.bench.figures import Figure, list_figures
from dsv4kv.cli import app
from dsv4kv.diagnose import gpu as examined
from dsv4kv.diagnose.gpu import STEPS, GpuReport, Row, examine_gpu
from dsv4kv.errors import CudaUnavailable, VerificationError
from tests.gpu_twin import twin_device, twin_gpu
from visit.doctor import SMALL


@pytest.fixture(scope="module")
def report() -> GpuReport:
    patient = {name: (*own, "measure.figures_seconds=3000") for name, own in STEPS.items()}
    half = "model.preset=v4-flash"  # the heads of V4-Pro
    one = ("workload.concurrency=1", "workload.synthetic.requests=1")
    short = (half, *one, "workload.max_output_tokens=3", "measure.warmup_steps=1")
    with (
        twin_gpu() as twin,
        patch.object(examined, "find_device", lambda _: twin_device(twin)),
        patch.object(examined, "STEPS", patient),
        patch("dsv4kv.bench.figures.list_figures", _cold),  # its rows are no others
        patch("dsv4kv.bench.figures.MOST_CALLS", 1),
    ):
        return examine_gpu((*SMALL, *short))


def _cold(*given: Any) -> list[Figure]:
    return [figure for figure in list_figures(*given) if not figure.hot]


def test_every_operation_is_checked_and_right(report: GpuReport) -> None:
    assert report.wrong == []
    assert report.checks > 20


def test_every_row_has_what_the_gpu_should_take_and_takes(report: GpuReport) -> None:
    names = [row.name for row in report.rows]
    assert {"index_scores csa", "select_topk csa", "attend csa", "attend hca"} <= set(names)
    assert {"gather_topk csa", "gather_all hca", "engine step, a graph"} <= set(names)
    assert len(names) == len(set(names))
    for row in report.rows:
        assert row.measured_us
        if "GB" not in row.name:
            assert row.predicted_us
            assert row.roofline_us
            assert row.roofline_us < row.predicted_us


def test_a_wrong_operation_is_a_finding_and_fails(report: GpuReport) -> None:
    wrong = replace(report, wrong=["attend on pages: channel 3 is 1, and the reference has 2."])
    rows = [Row("attend csa", 80.0, 160.0, 40.0), Row("flush hca", 10.0, None, 5.0)]
    with patch.object(examined, "examine_gpu", lambda: replace(wrong, rows=rows)):
        result = CliRunner().invoke(app, ["doctor", "--check-gpu"])
        assert result.exit_code == VerificationError.exit_code
        assert "channel 3 is 1, and the reference has 2." in result.stdout
        assert [*result.stdout.split("attend csa")[1].split()[:6]] == [
            *("80.0", "µs", "160.0", "µs", "25", "%")
        ]
        told = json.loads(CliRunner().invoke(app, ["doctor", "--check-gpu", "--json"]).stdout)
    assert told["ok"] is False
    assert told["rows"][1] == asdict(rows[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_a_sentence() -> None:
    result = CliRunner().invoke(app, ["doctor", "--check-gpu"])
    assert isinstance(result.exception, CudaUnavailable) or result.exit_code
    with pytest.raises(CudaUnavailable, match="torch sees no CUDA device here"):
        examine_gpu()
