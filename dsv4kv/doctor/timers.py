"""Whether clocks agree: those of the host with each other, and the GPU's with the host's."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

from dsv4kv.doctor.check import Check, Status
from dsv4kv.units import format_duration

Clock = Callable[[], int]

_SPAN_S = 0.2
_HOST_WITHIN = 0.002  # time servers slew a wall clock by 0.05 % at most; the rest is scheduling
_GPU_WITHIN = 0.01  # launching and waking up, beside 100 ms of work
_LOOKS = 2_000


def check_host_clocks(
    clock_ns: Clock = time.perf_counter_ns,
    wall_ns: Clock = time.time_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Check]:
    """Hold the clock that times everything against the wall's, and tell how fine it is."""
    started, wall_started = clock_ns(), wall_ns()
    sleep(_SPAN_S)
    elapsed, wall_elapsed = clock_ns() - started, wall_ns() - wall_started
    advice = "the machine's clock was set meanwhile, or is not to be trusted: run this again."
    yield _compare("perf_counter", elapsed, "wall clock", wall_elapsed, _HOST_WITHIN, advice)
    looks = [clock_ns() for _ in range(_LOOKS)]
    steps = [after - before for before, after in pairwise(looks)]
    step_ns = min((step for step in steps if step), default=0)
    cost_ns = (looks[-1] - looks[0]) / len(steps)
    coarse = not step_ns or step_ns > 1_000
    told = f"steps of {format_duration(step_ns)}, {format_duration(cost_ns)} a look"
    status: Status = "note" if coarse else "good"
    yield Check("timers", "resolution", status, told, "operations of microseconds")


def compare_device_clock(device_ns: int, host_ns: int) -> Check:
    """Hold a GPU's events against the host's clock, over the same long work."""
    advice = "trust neither until they agree: update the driver, or stop what else uses the GPU."
    return _compare("GPU events", device_ns, "perf_counter", host_ns, _GPU_WITHIN, advice)


def _compare(
    name: str, elapsed_ns: int, other: str, other_ns: int, within: float, advice: str
) -> Check:
    apart = abs(elapsed_ns / other_ns - 1) if other_ns else 1.0
    told = (
        f"{format_duration(elapsed_ns)} against {format_duration(other_ns)} of {other}: "
        f"{apart * 100:.3f} % apart"
    )
    agree = apart <= within
    return Check(
        "timers", name, "good" if agree else "note", told, "every time that is told",
        None if agree else advice,
    )  # fmt: skip
