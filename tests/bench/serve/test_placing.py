"""Contexts that are placed: what they hold, what of it is as served, and that checks see it."""

import pytest

from dsv4kv.bench.build import check_contexts, plan_from
from dsv4kv.errors import ConfigError
from tests.bench.serve.serving import serve
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


def test_contexts_that_do_not_fit_the_pool_are_refused_and_how_many_would() -> None:
    config = tiny_config("workload.context=1000", "cache.num_blocks=17")
    with pytest.raises(
        ConfigError,
        match=r"^2 contexts of 1,032 tokens take 18 blocks and the pool has 17, enough for 1: "
        r"lower workload\.concurrency or workload\.context, or raise cache\.num_blocks\.$",
    ):
        check_contexts(config, plan_from(config))
