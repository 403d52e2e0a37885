"""Calls on the CPU, on a clock that the test moves."""

from dataclasses import dataclass, replace

from dsv4kv.measure.protocol import Rules, time_calls

TICK_NS = 250  # a coarse clock
QUICK = Rules(warmup_ns=3_000_000, window_ns=1_000_000, least_ns=1_000_000)


@dataclass
class Host:
    call_ns: int
    now_ns: int = 0
    calls: int = 0

    def call(self) -> None:
        self.calls += 1
        self.now_ns += self.call_ns

    def clock_ns(self) -> int:
        return self.now_ns // TICK_NS * TICK_NS


def test_a_short_call_is_repeated_until_a_coarse_clock_resolves_it() -> None:
    host = Host(call_ns=37)
    quicker = replace(QUICK, fewest_samples=5)
    timing = time_calls(host.call, quicker, host.clock_ns)
    assert timing.converged
    assert set(timing.samples_ns) == {37}
    assert timing.calls * 37 >= QUICK.unit_ns - TICK_NS


def test_a_long_call_is_a_sample_of_its_own() -> None:
    host = Host(call_ns=3_000_000)
    timing = time_calls(host.call, QUICK, host.clock_ns)
    assert timing.calls == 1
    assert set(timing.samples_ns) == {3_000_000}


def test_the_rules_are_those_of_the_protocol_unless_others_are_given() -> None:
    host = Host(call_ns=1_000_000)
    timing = time_calls(host.call, clock_ns=host.clock_ns)
    assert timing.warmup_ns >= Rules().warmup_ns
