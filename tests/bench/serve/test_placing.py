"""Contexts that are placed: what they hold, what of it is as served, and that checks see it."""

import pytest
import torch

from dsv4kv.bench.build import check_contexts, plan_from
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.bench.serve.loop import Requests
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import ConfigError
from tests.bench.serve.defects import Break, flip_page_byte, swap_blocks, zero_pages
from tests.bench.serve.serving import drive_on_cpu, make_config, serve
from tests.bench.settings import tiny_config

CONTEXT = 450
DRAFTS = ("workload.speculative.draft_tokens=2", "workload.speculative.acceptance=0.5")
CACHES = {
    "v4-flash": (),
    "with drafts": DRAFTS,
    "online": ("cache.state=online",),
    "v4.1-flash": ("model.preset=v4.1-flash", "model.layers=[0, 2, 3, 20, 21, 24]"),
    "a table per layer": ("cache.sharing=layer", "model.layers=[2, 3, 4, 5]"),
    "large blocks": ("cache.block_tokens=256",),
}


def placing(*settings: str) -> tuple[str, ...]:
    return (f"workload.context={CONTEXT}", *settings)


@pytest.mark.parametrize("settings", CACHES.values(), ids=CACHES)
def test_placed_contexts_are_decoded_and_pass_every_check(settings: tuple[str, ...]) -> None:
    served = serve([(CONTEXT, 40)] * 2, *placing(*settings))
    assert served.verifier.failures == []
    assert served.totals.placed_tokens == 2 * CONTEXT
    assert (served.totals.requests, served.totals.input_tokens) == (2, 0)
    assert served.totals.output_tokens == 2 * 39
    assert min(served.verifier.checks.values()) > 10


WRONG = {
    "a byte of a placed entry": (flip_page_byte(2, "main", 100), "compressed KV"),
    "a byte of a placed key": (flip_page_byte(2, "indexer", 5), "indexer keys"),
    "blocks of two requests swapped": (swap_blocks((0, 1), (0, 0), 6), "compressed KV|keys"),
    "lost pages": (zero_pages("main", 2), "compressed KV"),
}
FEW_ENTRIES = 8, 100  # each is sampled often


@pytest.mark.parametrize(("harm", "found"), WRONG.values(), ids=WRONG)
def test_a_wrong_placed_entry_is_found(
    harm: Break, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddle = harm(monkeypatch)
    served = serve([FEW_ENTRIES] * 2, "workload.context=8", meddle=meddle)
    assert served.verifier.failures
    assert any(word in served.verifier.failures[0] for word in found.split("|"))


@pytest.mark.parametrize("tokens", [1, 7, 128, 300, 450])
def test_windows_and_states_are_as_served(tokens: int) -> None:
    placed, served = (fill(tokens, place=place) for place in (True, False))
    for attn, pool in placed.states.items():
        other = served.states[attn]
        pairs = [(a.pages, b.pages) for a, b in zip(pool.windows, other.windows, strict=True)]
        pairs += list(zip(pool.states(), other.states(), strict=True))
        assert pairs
        for mine, theirs in pairs:
            assert torch.equal(mine, theirs)


def fill(tokens: int, *, place: bool) -> KVCacheManager:
    """A request of so many tokens, placed or served in chunks of 64."""
    config = make_config(f"workload.context={tokens}", "workload.concurrency=1")
    manager = KVCacheManager(plan_from(config))
    requests = Requests(manager, drive_on_cpu(config, manager, Recorder()).executor)
    slot = requests.admit()
    if place:
        requests.place(slot, 0, tokens)
    else:
        requests.compute(slot, 0, *range(64, tokens, 64), tokens)
    return manager


def test_contexts_that_do_not_fit_the_pool_are_refused_and_how_many_would() -> None:
    config = tiny_config("workload.context=1000", "cache.num_blocks=17")
    with pytest.raises(
        ConfigError,
        match=r"^2 contexts of 1,032 tokens take 18 blocks and the pool has 17, enough for 1: "
        r"lower workload\.concurrency or workload\.context, or raise cache\.num_blocks\.$",
    ):
        check_contexts(config, plan_from(config))
