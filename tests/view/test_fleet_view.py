"""A fleet on a terminal, a page and beside another."""

from typing import Any

import pytest

from dsv4kv.runs.replay import FleetReplica, ReplayFleet
from dsv4kv.runs.schema import Totals
from dsv4kv.view.fleet import fleet_facts, hours_per_million, replicas_table

GIB = 2**30


def replica(number: int, **chosen: Any) -> FleetReplica:
    values: dict[str, Any] = {
        "name": f"replica {number}",
        "role": "both",
        "gpus": 8,
        "requests": 50,
        "prompt_tokens": 1000,
        "saved_tokens": 300,
        "computed_tokens": 700,
        "output_tokens": 500,
        "peak_requests": 4,
        "busy_ns": 1_800_000_000_000,
        "queued_ns": 500_000_000,
        "held_bytes": 3 * GIB,
    }
    return FleetReplica(**values | chosen)


def fleet(*replicas: FleetReplica, **chosen: Any) -> ReplayFleet:
    values: dict[str, Any] = {
        "router": "dynamo",
        "decode_router": None,
        "replicas": list(replicas),
        "prompt_tokens": sum(r.prompt_tokens for r in replicas if r.role != "decode"),
        "saved_tokens": sum(r.saved_tokens for r in replicas),
        "pooled_saved_tokens": 800,
        "ideal_saved_tokens": 900,
        "held_bytes": sum(r.held_bytes for r in replicas),
        "repeated_bytes": GIB,
        "slo": {},
        "good_requests": 100,
        "good_output_tokens": 1000,
        "gpu_hour_price": None,
    }
    return ReplayFleet(**values | chosen)


TOTALS = Totals(
    requests=100,
    rejected=0,
    input_tokens=2000,
    output_tokens=2_000_000,
    drafted_tokens=0,
    rolled_back_tokens=0,
    steps=10,
    wall_ns=3_600_000_000_000,
    peak_blocks=1,
    peak_rounding_bytes=0,
    peak_requests=8,
    blocks_left=0,
)
TWO = fleet(replica(0), replica(1, busy_ns=900_000_000_000, saved_tokens=100))


def test_costs_are_the_gpus_times_the_hours() -> None:
    assert hours_per_million(TWO, TOTALS) == 8.0  # 16 GPUs for an hour, 2 · 10^6 tokens
    assert "16.0 GPU-hours, 8.00 for 10^6 tokens" in fleet_facts(TWO, TOTALS).rows["costs"]
    priced = TWO.model_copy(update={"gpu_hour_price": 2.5})
    assert fleet_facts(priced, TOTALS).rows["costs"].endswith("in money 40.0, 20.0 for 10^6")


def test_what_follows_from_times_has_their_error_and_no_more_digits() -> None:
    priced = TWO.model_copy(update={"gpu_hour_price": 0.0001234})
    rows = fleet_facts(priced, TOTALS, 1.3).rows
    costs = "16 GPU-hours, 8.0 for 10^6 tokens of answers; in money 0.0020, 0.00099 for 10^6"
    assert rows["costs"] == f"{costs} (× ÷ 1.3)"
    assert rows["goodput"].startswith("0.028 a second (× ÷ 1.3)")
    note = replicas_table(TWO, TOTALS, 1.8).note
    assert note is not None
    assert note.startswith("waits are those for a slot (× ÷ 1.8);")


def test_facts_say_what_one_pool_would_find_and_how_even_the_replicas_were() -> None:
    rows = fleet_facts(TWO, TOTALS).rows
    assert rows["fleet"] == "2 replicas behind dynamo; 16 GPUs"
    assert rows["hit rate"].startswith("20.0% of prompt tokens; one pool of all blocks 40.0%")
    assert rows["held twice"].startswith("1.00 GiB of the 6.00 GiB")
    assert rows["imbalance"] == "the busiest replica works 1.33 times the mean"


def test_goodput_names_what_was_kept() -> None:
    assert "every request served is good" in fleet_facts(TWO, TOTALS).rows["goodput"]
    strict = TWO.model_copy(update={"slo": {"ttft": 2e9, "tpot": 5e7}, "good_requests": 36})
    good = fleet_facts(strict, TOTALS).rows["goodput"]
    assert good.startswith("36 of 100 requests (36.0%) with ttft ≤ 2.00 s and tpot ≤ 50.0 ms; ")


def test_a_rejected_request_is_not_good() -> None:
    strict = TWO.model_copy(update={"slo": {"ttft": 2e9}, "good_requests": 36})
    some = TOTALS.model_copy(update={"rejected": 20})
    good = fleet_facts(strict, some).rows["goodput"]
    assert good.startswith("36 of 120 requests (30.0%) with ttft")


def test_a_split_fleet_shows_what_was_sent() -> None:
    split = fleet(
        replica(0, role="prefill", sent_bytes=2 * GIB, sending_waited_ns=10**9),
        replica(1, role="decode", saved_tokens=0),
        decode_router="dynamo-decode",
    )
    rows = fleet_facts(split, TOTALS).rows
    assert rows["fleet"].startswith("1 prefill behind dynamo, 1 decode behind dynamo-decode")
    assert rows["sent"].startswith("2.00 GiB to decode replicas by one rank")
    table = replicas_table(split, TOTALS)
    assert [str(row[-1]) for row in table.rows] == ["2.00 GiB", "–"]


@pytest.mark.parametrize("chosen", [{"saved_tokens": 1}, {"held_bytes": 1}])
def test_a_fleet_that_does_not_add_up_is_no_record(chosen: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="and the fleet"):
        fleet(replica(0), replica(1), **chosen)
