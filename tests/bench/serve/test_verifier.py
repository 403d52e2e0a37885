"""The checks against the reference: silent on a right cache, loud on any wrong one."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dsv4kv.bench.build import build_drive, plan_from
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType
from dsv4kv.ops import cpu
from dsv4kv.ops.registry import resolve_backend
from tests.bench.serve.defects import (
    Break,
    flip_page_byte,
    flip_window_byte,
    forget_reset,
    lengths_off_by,
    once_per_position,
    skip_call,
    swap_blocks,
    unbiased_state,
    wrong_ring,
)
from tests.bench.serve.defects import replace_op as op
from tests.bench.serve.defects import shift_positions as shift
from tests.bench.serve.serving import make_config, serve

PRO = ("model.preset=v4-pro", "model.layers=[0, 2]")
ONLINE = ("cache.state=online",)
DRAFTS = ("workload.speculative.draft_tokens=2", "workload.speculative.acceptance=0.5")


def formats(**names: str) -> tuple[str, ...]:
    return tuple(f"model.formats.{place}={name}" for place, name in names.items())


RIGHT = {
    "v4-flash": (),
    "v4-flash with drafts": DRAFTS,
    "v4-flash online": ONLINE,
    "v4-pro": PRO,
    "bf16": formats(main="bf16", window="bf16", indexer="bf16"),
    "fp8 with drafts": (*formats(main="fp8", window="fp8", indexer="fp8"), *DRAFTS),
    "fp4 online": (*formats(main="fp4", window="fp8_group32"), *ONLINE),
    "a table per type": ("cache.sharing=type",),
    "a table per layer": ("cache.sharing=layer", "model.layers=[2, 3, 4, 5]"),
    "large blocks": ("cache.block_tokens=256", *DRAFTS),
    "angles in float64": ("cache.rope=float64",),
    "without hadamard": ("cache.hadamard=false", "model.formats.indexer=fp8"),
    "sliding windows alone": ("model.layers=[0, 1]",),
    "one thing at a time": ("workload.concurrency=1", "workload.step_tokens=13"),
    "drafts beyond a step": ("workload.step_tokens=5", "workload.speculative.draft_tokens=6"),
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


ANY_ENTRY = "compressed KV|indexer keys"
NEW = [(1, 100)]
SHORT = [(3, 60)]  # few entries: each is sampled often
TWICE = [(64, 2), (8, 40)]  # one after the other in one slot
LONG = [(300, 20)]
RECYCLED = [(200, 2), (200, 2), (200, 30), (9, 60)]  # the last two in used blocks
ALONE = "workload.concurrency=1"

Case = tuple[Break, list[tuple[int, int]], str, tuple[str, ...]]


def case(harm: Break, lengths: list[tuple[int, int]], reported: str, *settings: str) -> Case:
    """How a cache is broken, what it serves, and what the failure must tell."""
    return harm, lengths, reported, settings


WRONG = {
    "a byte of a CSA value": case(flip_page_byte(2, "main", 100), SHORT, "compressed KV"),
    "a byte of a key's scale": case(flip_page_byte(2, "indexer", 64 * 32), SHORT, "indexer keys"),
    "a byte of a SWA window": case(flip_window_byte(AttentionType.SWA), NEW, "window", ALONE),
    "blocks of a request swapped": case(swap_blocks((0, 0), (0, 1), 6), LONG, ANY_ENTRY, ALONE),
    "the first flush skipped": case(op("flush", skip_call(0)), SHORT, "compressed KV"),
    "a window insert skipped": case(op("window_insert", skip_call(4)), NEW, "window"),
    "slots not reset": case(forget_reset, TWICE, ANY_ENTRY, ALONE),
    "window ring too small": case(wrong_ring, [(100, 60)], "window"),
    "window a token behind": case(op("gather_window", shift(2, -1)), LONG, "window"),
    "online sums begun late": case(
        op("state_append", shift(5, 1)), [(120, 30)], "compressed KV", "model.layers=[3]", *ONLINE
    ),
    "lengths too long": case(lengths_off_by(1), RECYCLED, "not asked for"),
    "rope a group late": case(op("_write", shift(2, 4)), SHORT, ANY_ENTRY),
    "rope late in bf16": case(
        op("_write", shift(2, 4)), SHORT, ANY_ENTRY, *formats(main="bf16", indexer="bf16")
    ),
    "scores without position bias": case(unbiased_state, SHORT, ANY_ENTRY),
    "keys not rotated": case(op("rotate", lambda _right, keys: keys, cpu), SHORT, "indexer keys"),
    "entries of rejected drafts kept": case(
        op("flush", once_per_position(3)), [(6, 60)], ANY_ENTRY, ALONE, *DRAFTS
    ),
}


@pytest.mark.parametrize(("harm", "lengths", "reported", "settings"), WRONG.values(), ids=WRONG)
def test_a_wrong_cache_is_found_out(
    harm: Break,
    lengths: list[tuple[int, int]],
    reported: str,
    settings: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meddle = harm(monkeypatch)
    failures = serve(lengths, *settings, meddle=meddle).verifier.failures
    assert re.search(reported, "\n".join(failures)), failures


# ---- steps that read in place -------------------------------------------------------------------

ENGINE = "workload.step=engine"
V41 = ("model.preset=v4.1-flash", "model.layers=[0, 2, 3, 20, 21, 24, 25]")
INTERLEAVED = formats(main="fp4_interleaved", window="fp8_group32_interleaved")
IN_PLACE = {
    "v4-flash": (),
    "v4-flash with drafts": DRAFTS,
    "v4-pro online": ("model.preset=v4-pro", "model.layers=[0, 2]", "cache.state=online"),
    "v4.1-flash": V41,
    "v4.1-flash with drafts": (*V41, *DRAFTS, *INTERLEAVED),
    "fp8 keys": ("model.formats.indexer=fp8",),
    "a table per layer": ("cache.sharing=layer", "model.layers=[2, 3, 4, 5]"),
    "without hadamard": ("cache.hadamard=false",),
    "sliding windows alone": ("model.layers=[0, 1]",),
}


@pytest.mark.parametrize("settings", IN_PLACE.values(), ids=IN_PLACE)
def test_a_right_cache_read_in_place_passes_every_check(settings: tuple[str, ...]) -> None:
    served = serve(
        [(150, 8), (2, 12), (600, 9)], ENGINE, "cache.max_context_tokens=1024", *settings
    )
    assert served.totals.requests == 3
    assert served.verifier.failures == []
    indexed = any(schema.indexer for schema in served.manager.plan.schemas)
    expected = {"attend", *(("index_scores", "select_topk") if indexed else ())}
    assert expected <= set(served.verifier.checks)
    assert served.verifier.checks["attend"] > 20


def off_by_one(right: Callable[..., None], *arguments: Any) -> None:
    """Another entry is selected than the last."""
    right(*arguments)
    chosen = arguments[-2]
    chosen[:, 0] += 1


def halved(right: Callable[..., None], *arguments: Any) -> None:
    right(*arguments)
    arguments[-1].mul_(0.5)


def without_sinks(right: Callable[..., None], *arguments: Any) -> None:
    *before, sinks, scale, out, lse = arguments
    right(*before, torch.full_like(sinks, -torch.inf), scale, out, lse)


EVEN_PAIR = [(200, 30), (190, 30)]
WRONG_READS: dict[str, tuple[Break, list[tuple[int, int]], str]] = {
    "a byte of a CSA value": (flip_page_byte(2, "main", 100), SHORT, "attend"),
    "a byte of a window": (flip_window_byte(AttentionType.SWA), [(1, 100)], "attend"),
    "blocks of two requests swapped": (swap_blocks((0, 1), (0, 0), 6), EVEN_PAIR, "request"),
    "scores halved": (op("index_scores", halved), EVEN_PAIR, "index_scores"),
    "another selection": (op("select_topk", off_by_one), EVEN_PAIR, "select_topk"),
    "no sinks": (op("attend", without_sinks), EVEN_PAIR, "attend"),
}


@pytest.mark.parametrize(("harm", "lengths", "found"), WRONG_READS.values(), ids=WRONG_READS)
def test_anything_wrong_that_is_read_in_place_is_found(
    harm: Break, lengths: list[tuple[int, int]], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddle = harm(monkeypatch)
    served = serve(lengths, ENGINE, "workload.concurrency=2", meddle=meddle)
    assert served.verifier.failures
    assert found in served.verifier.failures[0]


def test_a_slice_without_the_layer_that_selects_gathers_or_is_refused() -> None:
    """V4.1: layers 21 to 23 attend to what layer 20 selected."""
    sliced = "model.preset=v4.1-flash", "model.layers=[0, 21, 22]"
    served = serve([(20, 3)], "workload.step=null", *sliced)
    assert ("gather_topk", "csa") in served.recorder.operations
    with pytest.raises(ConfigError, match="no layer held selects what layer 21 attends to: set"):
        serve([(20, 3)], ENGINE, *sliced)


@pytest.mark.parametrize(
    ("foreign", "why"),
    [(["gather_topk"], "--backend provides gather_topk"), (["window_insert"], None), ([], None)],
)
def test_a_gather_from_elsewhere_is_timed_in_steps_that_gather(
    foreign: list[str], why: str | None
) -> None:
    config = make_config("workload.step=null")
    manager = KVCacheManager(plan_from(config))
    drive = build_drive(
        config, manager, Recorder(), replace(resolve_backend("cpu", "cpu"), foreign=tuple(foreign))
    )
    assert drive.gathers_because == why
    assert drive.executor.in_place == (why is None)


def test_a_model_that_attend_does_not_read_is_gathered_or_refused() -> None:
    v32 = ("model.preset=v3.2", "model.layers=[0]")
    served = serve([(20, 3)], "workload.step=null", *v32)
    assert ("gather_topk", "dsa") in served.recorder.operations
    with pytest.raises(
        ConfigError, match=r"^workload\.step is engine, and attend does not read the entries of"
    ):
        serve([(20, 3)], ENGINE, *v32)
