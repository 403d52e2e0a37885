"""The questions to a GPU, asked of the kernels' CPU twin at small size."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.bench.device import CudaDevice
from dsv4kv.report.record import RunRecord
from tests.gpu_twin import SAMPLES, twin_device, twin_gpu

SCRIPT = Path(__file__).parents[2] / "results" / "h200" / "questions.py"


@pytest.fixture(scope="module")
def record() -> RunRecord:
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    with twin_gpu() as gpu:
        device: CudaDevice = twin_device(gpu)
        sizes = script["Sizes"](gathers=(64, 96), inserts=(32,), tokens=256, peak_bytes=1 << 20)
        found: RunRecord = script["answer"](device, sizes)
    return found


def test_every_question_is_asked_once(record: RunRecord) -> None:
    (case,) = record.cases
    names = [(each.name, each.layer_type) for each in case.operations]
    assert len(names) == len(set(names)) == 2 * 2 * 3 + 2 + (3 + 4) * 2
    assert [peak.name for peak in case.peaks] == ["copy", "read", "write"]
    assert (record.status, case.status) == ("complete", "complete")


def test_samples_are_as_many_as_are_taken(record: RunRecord) -> None:
    assert {len(each.samples_ns) for each in record.cases[0].operations} == {SAMPLES}


def test_a_call_of_several_launches_is_timed_as_one(record: RunRecord) -> None:
    flushes = [each for each in record.cases[0].operations if each.name.startswith("flush split")]
    assert {each.entries[0] for each in flushes} == {256 // 4, 256 // 128}
    assert {each.temperature for each in flushes} == {"hot"}
