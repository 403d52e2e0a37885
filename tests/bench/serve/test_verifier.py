"""The checks against the reference: silent on a right cache, loud on any wrong one."""

import re

import pytest

from dsv4kv.model.schedule import AttentionType
from dsv4kv.ops import codec
from dsv4kv.ops import cpu as compression
from tests.bench.serve.defects import (
    Break,
    flip_page_byte,
    flip_window_byte,
    forget_reset,
    leave_a_row_over,
    lengths_off_by,
    lose_all_but_the_first,
    losing_chunk,
    neighbour_state,
    once_per_position,
    plain_mean,
    replace_op,
    shift_positions,
    skip_call,
    swap_blocks,
    swapped_halves,
    unbiased_state,
    wrong_ring,
    wrong_state_ring,
    zero_pages,
)
from tests.bench.serve.serving import serve

PRO = ("model.preset=v4-pro", "model.layers=[0, 2]")
ONLINE = ("cache.state=online",)
DRAFTS = ("workload.speculative.draft_tokens=2", "workload.speculative.acceptance=0.5")
RIGHT = {
    "v4-flash": (),
    "v4-flash with drafts": DRAFTS,
    "v4-flash online": ONLINE,
    "v4-pro": PRO,
    "v4-pro with drafts": PRO + DRAFTS,
    "v4-pro online": PRO + ONLINE,
    "bf16": ("model.formats.main=bf16", "model.formats.window=bf16", "model.formats.indexer=bf16"),
    "fp8 with drafts": (
        "model.formats.main=fp8",
        "model.formats.window=fp8",
        "model.formats.indexer=fp8",
        *DRAFTS,
    ),
    "fp4 online": ("model.formats.main=fp4", "model.formats.window=fp8_group32", *ONLINE),
    "a table per type": ("cache.sharing=type",),
    "a table per layer": ("cache.sharing=layer", "model.layers=[2, 3, 4, 5]"),
    "large blocks": ("cache.block_tokens=256", *DRAFTS),
    "angles in float64": ("cache.rope=float64",),
    "without hadamard": ("cache.hadamard=false", "model.formats.indexer=fp8"),
    "sliding windows alone": ("model.layers=[0, 1]",),
    "one thing at a time": ("workload.concurrency=1", "workload.step_tokens=13"),
    "more drafts than step tokens": (
        "workload.step_tokens=5",
        "workload.speculative.draft_tokens=6",
    ),
}


@pytest.mark.parametrize("settings", RIGHT.values(), ids=RIGHT)
def test_a_right_cache_passes_every_check(settings: tuple[str, ...]) -> None:
    served = serve([(150, 8), (60, 12), (7, 9), (124, 10)], *settings)
    assert served.totals.requests == 4
    assert served.verifier.failures == []
    kinds = {schema.layer.attn for schema in served.manager.plan.schemas}
    expected = {"gather_window"}
    expected |= {"compressed KV"} if kinds != {AttentionType.SWA} else set()
    expected |= {"indexer keys"} if AttentionType.CSA in kinds else set()
    assert set(served.verifier.checks) == expected
    assert min(served.verifier.checks.values()) > 10


def test_a_window_that_wraps_several_times_passes() -> None:
    served = serve([(300, 60)], "workload.step_tokens=200", *DRAFTS)
    assert served.verifier.failures == []


ANY_ENTRY = "compressed KV|indexer keys"
NEW = [(1, 100)]
SHORT = [(3, 60)]  # few entries: each is sampled often
TWICE = [(64, 2), (8, 40)]  # one after the other in one slot
LONG = [(300, 20)]
PAIR = [(200, 30), (9, 60)]
RECYCLED = [(200, 2), (200, 2), (200, 30), (9, 60)]  # the last two in used blocks
ALONE = "workload.concurrency=1"

WRONG: dict[str, tuple[Break, list[tuple[int, int]], tuple[str, ...], str]] = {
    # name: (how the cache is broken, requests, settings, what the failure must tell)
    "a byte of a CSA value": (flip_page_byte(2, "main", 100), SHORT, (), "compressed KV"),
    "a byte of a CSA scale": (flip_page_byte(2, "main", 32 * 576), SHORT, (), "compressed KV"),
    "a byte of a CSA rope channel": (flip_page_byte(2, "main", 575), SHORT, (), "compressed KV"),
    "a byte of an HCA value": (flip_page_byte(3, "main", 9), [(130, 20)], (), "compressed KV"),
    "a byte of an indexer key": (flip_page_byte(2, "indexer", 5), SHORT, (), "indexer keys"),
    "a byte of a key's scale": (flip_page_byte(2, "indexer", 64 * 32), SHORT, (), "indexer keys"),
    "a byte of a SWA window": (flip_window_byte(AttentionType.SWA), NEW, (ALONE,), "window"),
    "a byte of a CSA window": (flip_window_byte(AttentionType.CSA), NEW, (ALONE,), "window"),
    "a byte of an HCA window": (flip_window_byte(AttentionType.HCA), NEW, (ALONE,), "window"),
    "lost CSA pages": (zero_pages("main", 2), SHORT, (), "compressed KV"),
    "lost indexer pages": (zero_pages("indexer", 2), SHORT, (), "indexer keys"),
    "blocks of a request swapped": (swap_blocks((0, 0), (0, 1), 6), LONG, (ALONE,), ANY_ENTRY),
    "blocks of two requests swapped": (swap_blocks((0, 1), (0, 0), 6), PAIR, (), ANY_ENTRY),
    "the first flush skipped": (replace_op("flush", skip_call(0)), SHORT, (), "compressed KV"),
    "the first key flush skipped": (replace_op("flush", skip_call(1)), SHORT, (), "indexer keys"),
    "a chunk skipped": (replace_op("compress_chunk", skip_call(3)), LONG, (), ANY_ENTRY),
    "a window insert skipped": (replace_op("window_insert", skip_call(4)), NEW, (), "window"),
    "slots not reset": (forget_reset, TWICE, (ALONE,), ANY_ENTRY),
    "slots not reset, online": (forget_reset, TWICE, (ALONE, *ONLINE), ANY_ENTRY),
    "window ring too small": (replace_op("window_insert", wrong_ring), [(100, 60)], (), "window"),
    "window a token behind": (
        replace_op("gather_window", shift_positions(2, -1)),
        LONG,
        (),
        "window",
    ),
    "window a token ahead": (
        replace_op("gather_window", shift_positions(2, 1)),
        LONG,
        (),
        "window",
    ),
    "window of the second request": (
        replace_op("gather_window", lose_all_but_the_first),
        PAIR,
        (),
        "window",
    ),
    "entries of the second request": (
        replace_op("gather_topk", lose_all_but_the_first),
        PAIR,
        (),
        "compressed KV",
    ),
    "state ring too small": (replace_op("state_append", wrong_state_ring), SHORT, (), ANY_ENTRY),
    "state of another slot": (replace_op("state_append", neighbour_state), PAIR, (), ANY_ENTRY),
    "states not carried between chunks": (
        replace_op("compress_chunk", losing_chunk),
        LONG,
        (),
        ANY_ENTRY,
    ),
    "online sums begun late": (
        replace_op("state_append", shift_positions(5, 1)),
        [(120, 30)],
        ("model.layers=[3]", *ONLINE),
        "compressed KV",
    ),
    "lengths too short": (lengths_off_by(-1), SHORT, (), ANY_ENTRY),
    "lengths too long": (lengths_off_by(1), RECYCLED, (), "not asked for"),
    "rope a group late": (
        replace_op("_write", shift_positions(2, 4), compression),
        SHORT,
        (),
        ANY_ENTRY,
    ),
    "rope a token late": (
        replace_op("_write", shift_positions(2, 1), compression),
        SHORT,
        ("cache.rope=float64",),  # a table has no rows for tokens
        ANY_ENTRY,
    ),
    "rope at the group's last token": (
        replace_op("_write", shift_positions(2, 127), compression),
        [(130, 20)],
        ("cache.rope=float64",),
        "compressed KV",
    ),
    "rope late in bf16": (
        replace_op("_write", shift_positions(2, 4), compression),
        SHORT,
        ("model.formats.main=bf16", "model.formats.indexer=bf16"),
        ANY_ENTRY,
    ),
    "rope late in fp4": (
        replace_op("_write", shift_positions(2, 4), compression),
        SHORT,
        ("model.formats.main=fp4",),
        ANY_ENTRY,
    ),
    "halves of the overlap swapped": (
        replace_op("_halves", swapped_halves, compression),
        SHORT,
        (),
        ANY_ENTRY,
    ),
    "scores without position bias": (
        replace_op("state_append", unbiased_state),
        SHORT,
        (),
        ANY_ENTRY,
    ),
    "a mean instead of a softmax": (
        replace_op("_pool", plain_mean, compression),
        SHORT,
        (),
        ANY_ENTRY,
    ),
    "keys not rotated": (
        replace_op("hadamard", lambda _right, keys: keys, codec),
        SHORT,
        (),
        "indexer keys",
    ),
    "entries of rejected drafts kept": (
        replace_op("flush", once_per_position(3)),
        [(6, 60)],
        (ALONE, *DRAFTS),
        ANY_ENTRY,
    ),
    "states of rejected drafts kept": (
        replace_op("state_append", once_per_position(5)),
        [(6, 60)],
        (ALONE, *DRAFTS),
        ANY_ENTRY,
    ),
    "windows of rejected drafts kept": (
        replace_op("window_insert", once_per_position(3)),
        [(6, 60)],
        (ALONE, *DRAFTS),
        "window",
    ),
}


@pytest.mark.parametrize(("harm", "lengths", "settings", "reported"), WRONG.values(), ids=WRONG)
def test_a_wrong_cache_is_found_out(
    harm: Break,
    lengths: list[tuple[int, int]],
    settings: tuple[str, ...],
    reported: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meddle = harm(monkeypatch)
    failures = serve(lengths, *settings, meddle=meddle).verifier.failures
    assert re.search(reported, "\n".join(failures)), failures


def test_a_failure_names_operation_entry_request_and_layer() -> None:
    with pytest.MonkeyPatch.context() as patch:
        replace_op("flush", skip_call(0))(patch)
        failures = serve(SHORT, ALONE, "model.layers=[0, 2]").verifier.failures
    assert failures == [
        "compressed KV: entry 0 of request 0 in layer 2 (csa) differs from the reference."
    ]


def test_unasked_rows_must_be_zero() -> None:
    with pytest.MonkeyPatch.context() as patch:
        replace_op("gather_window", leave_a_row_over)(patch)
        failures = serve([(20, 3)], "model.layers=[0]").verifier.failures
    assert "gather_window" in failures[0]
