"""Reports of ncu, through a made-up ``ncu_report`` package with the functions of the real one."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsv4kv.errors import ProfileError
from dsv4kv.profile.read import read_ncu
from dsv4kv.profile.trace import NONE

Metrics = dict[str, tuple[float | str, str]]


Action = tuple[str, Metrics]


def context(ranges: list[list[Action]]) -> SimpleNamespace:
    """What ``load_report`` returns."""

    def metric(value: float | str, unit: str) -> SimpleNamespace:
        told = {"as_double": lambda: float(value), "as_string": lambda: str(value)}
        return SimpleNamespace(**told, unit=lambda: unit)

    def action(title: str, metrics: Metrics) -> SimpleNamespace:
        found = {name: metric(*each) for name, each in metrics.items()}
        return SimpleNamespace(name=lambda: title, metric_by_name=found.get)

    def part(actions: list[Action]) -> SimpleNamespace:
        return SimpleNamespace(
            num_actions=lambda: len(actions), action_by_idx=lambda i: action(*actions[i])
        )

    return SimpleNamespace(num_ranges=lambda: len(ranges), range_by_idx=lambda i: part(ranges[i]))


def gather(time: float = 2_000.0, unit: str = "ns") -> Action:
    return (
        "gather_topk",
        {
            "gpu__time_duration.sum": (time, unit), "dram__bytes_read.sum": (1_000.0, "byte"),
            "dram__bytes_write.sum": (0.5, "Kbyte"),
            "device__attribute_display_name": ("A GPU", ""),
        },
    )  # fmt: skip


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Action]]:
    """Ranges that the package will find in any file."""
    ranges: list[list[Action]] = []
    package = SimpleNamespace(load_report=lambda _path: context(ranges))
    monkeypatch.setitem(sys.modules, "ncu_report", package)
    (tmp_path / "step.ncu-rep").touch()
    monkeypatch.chdir(tmp_path)
    return ranges


def test_kernels_have_time_and_bytes(report: list[list[Action]]) -> None:
    report.append([gather(), ("flush", {})])
    report.append([gather(3.5, "us")])
    trace = read_ncu(Path("step.ncu-rep"))
    assert [trace.names[i] for i in trace.work.name] == ["gather_topk", "flush", "gather_topk"]
    assert trace.work.self_ns.tolist() == [2_000, 0, 3_500]
    assert trace.work.bytes.tolist() == [1_500, NONE, 1_500]
    assert trace.devices == {0: "A GPU"}
    (warning,) = trace.warnings
    assert warning.startswith("1 of 3 kernels have no gpu__time_duration.sum and count as 0")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, "soon"])
def test_metrics_may_be_no_numbers(value: float | str, report: list[list[Action]]) -> None:
    _, plain = gather()
    report += [[("odd", plain | {name: (value, "ns")})] for name in plain]
    trace = read_ncu(Path("step.ncu-rep"))
    assert trace.work.self_ns.tolist() == [0] + [2_000] * (len(plain) - 1)
    assert trace.work.bytes.tolist()[:3] == [1_500, NONE, NONE]


def test_odd_reports_are_told(report: list[list[Action]], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_path: str) -> None:
        raise RuntimeError("not a report")

    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=fail))
    with pytest.raises(ProfileError, match=r"report of ncu \(not a report\)"):
        read_ncu(Path("step.ncu-rep"))
