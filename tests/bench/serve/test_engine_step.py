"""Decode steps that read as engines do: what is read and counted, and that checks see it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dsv4kv.bench.build import build_drive, plan_from, why_gathered
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.check import OUTPUT_ERROR, SCORE_ERROR
from dsv4kv.ops.registry import resolve_backend
from dsv4kv.ops.spec import OPERATIONS, READS
from tests.bench.serve.defects import (
    Break,
    flip_page_byte,
    flip_window_byte,
    replace_op,
    swap_blocks,
    zero_pages,
)
from tests.bench.serve.serving import drive_on_cpu, make_config, serve

ENGINE = "workload.step=engine"
DRAFTS = ("workload.speculative.draft_tokens=2", "workload.speculative.acceptance=0.5")
V41 = ("model.preset=v4.1-flash", "model.layers=[0, 2, 3, 20, 21, 24, 25]")
RIGHT = {
    "v4-flash": (),
    "v4-flash with drafts": DRAFTS,
    "v4-pro online": ("model.preset=v4-pro", "model.layers=[0, 2]", "cache.state=online"),
    "v4.1-flash": V41,
    "v4.1-flash with drafts": V41 + DRAFTS,
    "fp8 keys": ("model.formats.indexer=fp8",),
    "a table per layer": ("cache.sharing=layer", "model.layers=[2, 3, 4, 5]"),
    "without hadamard": ("cache.hadamard=false",),
    "sliding windows alone": ("model.layers=[0, 1]",),
}


@pytest.mark.parametrize("settings", RIGHT.values(), ids=RIGHT)
def test_a_right_cache_passes_every_check(settings: tuple[str, ...]) -> None:
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


def a_token_behind(right: Callable[..., None], *arguments: Any) -> None:
    ring, slots, tokens, *others = arguments
    right(ring, slots, tokens - 1, *others)


def of_the_first(right: Callable[..., None], *arguments: Any) -> None:
    """Keys of the first request, whoever asks."""
    store, table, slots, *others = arguments
    right(store, table, slots[:1].expand_as(slots), *others)


SHORT = [(3, 60)]
PAIR = [(200, 30), (190, 30)]
WRONG: dict[str, tuple[Break, list[tuple[int, int]], str]] = {
    "a byte of a CSA value": (flip_page_byte(2, "main", 100), SHORT, "attend"),
    "a byte of a key": (flip_page_byte(2, "indexer", 5), SHORT, "index_scores"),
    "a byte of a window": (flip_window_byte(AttentionType.SWA), [(1, 100)], "attend"),
    "lost pages": (zero_pages("main", 2), SHORT, "attend"),
    "blocks of two requests swapped": (swap_blocks((0, 1), (0, 0), 6), PAIR, "request"),
    "scores halved": (replace_op("index_scores", halved), PAIR, "index_scores"),
    "keys of the first request": (replace_op("index_scores", of_the_first), PAIR, "index_scores"),
    "another selection": (replace_op("select_topk", off_by_one), PAIR, "select_topk"),
    "no sinks": (replace_op("attend", without_sinks), PAIR, "attend"),
    "a window a token behind": (replace_op("attend", a_token_behind), SHORT, "attend"),
}


@pytest.mark.parametrize(("harm", "lengths", "found"), WRONG.values(), ids=WRONG)
def test_anything_wrong_is_found(
    harm: Break, lengths: list[tuple[int, int]], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddle = harm(monkeypatch)
    served = serve(lengths, ENGINE, "workload.concurrency=2", meddle=meddle)
    assert served.verifier.failures
    assert found in served.verifier.failures[0]


def test_every_read_of_a_step_equals_the_literal_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = dict.fromkeys(READS, 0)
    errors = {"index_scores": SCORE_ERROR, "attend": OUTPUT_ERROR}

    def both(name: str, outputs: int) -> Callable[..., None]:
        right, literal = getattr(cpu, name), getattr(reference, name)

        def run(**tensors: Any) -> None:
            arguments = [tensors[each] for each in OPERATIONS[name].names]
            mine = arguments[-outputs:]
            theirs = [each.clone() for each in mine]
            right(*arguments)
            literal(*arguments[:-outputs], *theirs)
            for found, expected in zip(mine, theirs, strict=True):
                size = expected.float().nan_to_num(posinf=0, neginf=0).abs().max()
                error = errors.get(name, 0) * float(size)
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=error)
            compared[name] += 1

        return run

    for name, outputs in zip(READS, (2, 1, 1, 2, 2), strict=True):
        monkeypatch.setattr(cpu, name, both(name, outputs))
    settings = "model.layers=[0, 20, 21, 24]", "workload.concurrency=2"
    serve([(40, 3), (9, 3)], ENGINE, "model.preset=v4.1-flash", *settings)
    assert min(compared.values()) >= 2


def test_layers_that_share_a_selection_only_attend() -> None:
    operations = serve([(40, 3)], ENGINE, *V41).recorder.operations
    calls = {
        name: len(samples) // 4 for (name, attn), samples in operations.items() if attn == "csa"
    }
    steps = calls["attend"] // 6
    assert calls["select_topk"] == calls["index_scores"] == 3 * steps  # layers 2, 20 and 24
    assert calls["select_blocks"] == steps


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


def test_a_gpu_without_kernels_for_the_reads_gathers_and_says_why() -> None:
    layers = drive_on_cpu(make_config(), KVCacheManager(plan_from(make_config())), Recorder())
    why = why_gathered(layers.executor.layers, [], on_gpu=True)
    assert why == "attend has no kernel for a GPU"


def test_a_model_that_attend_does_not_read_is_gathered_or_refused() -> None:
    v32 = ("model.preset=v3.2", "model.layers=[0]")
    served = serve([(20, 3)], "workload.step=null", *v32)
    assert ("gather_topk", "dsa") in served.recorder.operations
    with pytest.raises(
        ConfigError, match=r"^workload\.step is engine, and attend does not read the entries of"
    ):
        serve([(20, 3)], ENGINE, *v32)
