import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.runs.telemetry import GpuChecks, GpuSamples, GpuState
from dsv4kv.view.page.sections import (
    machine_facts,
    reports_limits,
    telemetry_tracks,
    throttled_spans,
)
from tests.view.page.pages import POLL_NS, make_telemetry

REASONS = st.lists(st.sampled_from([None, 0, 0x1, 0x4, 0x20, 0x24]), min_size=1, max_size=40)


def samples_of(reasons: list[int | None]) -> GpuSamples:
    samples = make_telemetry(reasons).gpu_samples
    assert samples is not None
    return samples


@given(REASONS)
def test_a_moment_is_shaded_exactly_if_the_last_poll_told_a_limit(
    reasons: list[int | None],
) -> None:
    spans = throttled_spans(samples_of(reasons))
    for n, reason in enumerate(reasons[:-1]):
        moment_s = (n + 0.5) * POLL_NS * 1e-9
        shaded = {span.reason for span in spans if span.start_s < moment_s < span.end_s}
        told = {0x4: "power cap", 0x20: "thermal slowdown by software"}
        assert shaded == {name for bit, name in told.items() if (reason or 0) & bit}


def test_a_stretch_goes_from_the_poll_that_told_to_the_next_that_did_not() -> None:
    (span,) = throttled_spans(samples_of([0, 0x4, 0x4, 0]))
    assert (span.start_s, span.end_s) == pytest.approx((0.04, 0.12))
    assert span.reason == "power cap"


def test_an_idle_gpu_is_not_held_back() -> None:
    assert throttled_spans(samples_of([0x1, 0x2, 0x1])) == []


def test_what_was_never_answered_is_no_track() -> None:
    telemetry = make_telemetry([0, 0, 0])
    assert [track.name for track in telemetry_tracks(telemetry)] == ["SM clock"]
    nothing = telemetry.model_copy(update={"gpu_samples": None})
    assert telemetry_tracks(nothing) == []


def test_tracks_are_in_seconds_and_the_units_they_name() -> None:
    checks = GpuChecks(at_ns=[0, 2_000_000_000], memory_used_bytes=[2**30, 3 * 2**30])
    telemetry = make_telemetry([0, 0]).model_copy(update={"gpu_checks": checks})
    track = telemetry_tracks(telemetry)[-1]
    assert (track.name, track.unit) == ("memory in use", "GiB")
    assert (list(track.seconds), list(track.values)) == ([0, 2], [1, 3])


def test_what_no_poll_told_is_shaded_from_the_poll_before_its_counter_grew() -> None:
    samples = samples_of([0, 0, 0x4, 0]).model_copy(
        update={"thermal_violation_ns": [5, 9, 9, 9], "power_violation_ns": [0, 0, 0, 7]}
    )
    polled, counted = throttled_spans(samples)
    assert polled.reason == "power cap"
    assert (polled.start_s, polled.end_s) == pytest.approx((0.08, 0.12))
    assert counted.reason == "thermal slowdown"
    assert (counted.start_s, counted.end_s) == pytest.approx((0, 0.04))


def test_counters_alone_tell_limits_and_no_answer_at_all_tells_none() -> None:
    silent = samples_of([0, 0]).model_copy(update={"reasons": None})
    counted = silent.model_copy(update={"power_violation_ns": [0, 1]})
    assert [reports_limits(each) for each in (silent, counted)] == [False, True]
    assert [span.reason for span in throttled_spans(counted)] == ["power cap"]


def test_what_did_not_change_is_told_as_facts_and_what_nobody_told_is_left_out() -> None:
    telemetry = make_telemetry([0, 0])
    assert machine_facts(telemetry) == {"process": "1.00 GiB resident at most"}
    gpu = GpuState(uuid="GPU-1", power_limit_mw=700_000, most_sm_clock_mhz=1_980, ecc=1, mig=0)
    checks = GpuChecks(at_ns=[0, 1, 2], pcie_generation=[1, 5, None], pcie_width=[16, 16, 16])
    facts = machine_facts(telemetry.model_copy(update={"gpu": gpu, "gpu_checks": checks}))
    assert facts == {
        "GPU": "power limit 700 W, SM clock up to 1,980 MHz, ECC on, MIG off",
        "PCIe": "generation 1, 16 lanes or generation 5, 16 lanes",
        "process": "1.00 GiB resident at most",
    }
