import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.report.page.telemetry import telemetry_tracks, throttled_spans
from dsv4kv.report.telemetry_record import GpuChecks, GpuSamples
from tests.report.page.pages import POLL_NS, make_telemetry

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
