"""Telemetry as it is told: a row for each window, and findings for people in a hurry."""

from typing import Any

from syrupy.assertion import SnapshotAssertion

from dsv4kv.runs.parts import GpuChecks, HostSamples, Telemetry
from dsv4kv.view.facts import judge_telemetry, telemetry_table
from tests.runs.records import make_case
from tests.runs.telemetries import make_gpu_samples, make_telemetry, make_window
from tests.view.terminal import shown


def findings(telemetry: Telemetry | None) -> list[tuple[str, str]]:
    found = judge_telemetry(make_case(telemetry=telemetry))
    return [(finding.level, finding.sentence) for finding in found]


def table_text(telemetry: Telemetry) -> str:
    table = telemetry_table(make_case(telemetry=telemetry))
    assert table is not None
    return shown(table)


def throttled() -> Telemetry:
    """Three rows, of which the second is capped and the clock falls."""
    window = make_window(1)

    def inside(yes: int, no: int) -> Any:
        return lambda at: yes if window.started_ns <= at <= window.ended_ns else no

    middle = window.started_ns + 250_000_000
    samples = make_gpu_samples(
        3,
        reasons=inside(0x4, 0),
        sm_clock_mhz=lambda at: 1_410 if middle <= at <= window.ended_ns else 1_980,
    )
    return make_telemetry(gpu_samples=samples)


def test_a_row_whose_window_was_throttled_says_by_what(snapshot: SnapshotAssertion) -> None:
    assert table_text(throttled()) == snapshot


def test_company_on_the_gpu_and_the_cpus_is_told() -> None:
    at_ns = list(range(0, 3_000_000_000, 200_000_000))
    busy = HostSamples(at_ns=at_ns, machine_busy_ns=[3 * at for at in at_ns], own_cpu_ns=at_ns)
    shared = GpuChecks(at_ns=at_ns, other_processes=[0, 0, 2, *[0] * (len(at_ns) - 3)])
    rows = ", ".join(f"gather_{index} csa cold (2.0)" for index in range(3))
    assert findings(make_telemetry(host_samples=busy, gpu_checks=shared)) == [
        ("note", f"other processes used CPUs during {rows}"),
        ("warning", "2 other processes computed on the GPU"),
    ]
