"""The memcpy yardstick."""

import subprocess
import sys

import pytest
import torch

from dsv4kv.measure.protocol import Rules, measure_memcpy, time_memcpy


def test_every_repeat_gives_one_positive_duration() -> None:
    samples_ns = measure_memcpy(2**20, repeats=7)
    assert len(samples_ns) == 7
    assert all(isinstance(sample, int) and sample > 0 for sample in samples_ns)


def test_every_copy_fills_the_destination_with_what_the_source_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies: list[tuple[int, bool]] = []
    copy = torch.Tensor.copy_

    def observed(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        copy(target, source)
        copies.append((target.nbytes, torch.equal(target, source) and bool(source.all())))
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", observed)
    measure_memcpy(2**20, repeats=3)
    assert copies == [(2**20, True)] * 4


def test_a_calibration_copies_by_the_protocol() -> None:
    rules = Rules(warmup_ns=0, window_ns=0, most_warmup_ns=0, batch_ns=0, least_ns=0, most_ns=1)
    timing = time_memcpy(2**10, rules)
    assert timing.calls > 10  # a kilobyte takes far less than a millisecond
    assert min(timing.samples_ns) > 0


def test_importing_the_measure_modules_does_not_import_torch() -> None:
    code = (
        "import sys, dsv4kv.measure.protocol, dsv4kv.measure.statistics;"
        "from dsv4kv.measure.environment import capture_environment;"
        "capture_environment(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
