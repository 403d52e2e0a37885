"""Every option gains what it says, and where nothing fits the cheapest that helps leads."""

from contextlib import suppress
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget.answer import answer
from dsv4kv.budget.fit import (
    _apply,
    _changes,
    advise,
    fits,
    max_concurrency,
    spread_layers,
    tightest_free_bytes,
)
from dsv4kv.budget.inputs import READERS
from dsv4kv.budget.launch import launch_line
from dsv4kv.budget.scenario import Scenario, fix_layout, resolve
from dsv4kv.engines.names import find_flag
from dsv4kv.errors import ConfigError
from tests.budget.questions import ask, scenario, scenarios
from tests.examples import examples


def typed(found: Scenario, change: str) -> Scenario:
    """The deployment after options are typed as an option of the advice says."""
    words = change.replace("=", " ").split()
    family = found.engine.name.partition(":")[0]
    texts: dict[str, str] = {}
    for spelling, value in zip(words[::2], words[1::2], strict=True):
        flag = find_flag(family, spelling)
        means = flag.means if flag else None
        texts |= means.of(value) if means else {spelling.removeprefix("--"): value}
    kept = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name in READERS
        if (value := getattr(fix_layout(found), name.replace("-", "_"))) is not None
    }
    spread = {"gpus", "tp", "dp", "ep"} & set(texts)
    if spread:
        kept = {
            name: text for name, text in kept.items() if name not in {"gpus", "tp", "dp", "ep"}
        }
    return resolve(ask(**{k.replace("-", "_"): v for k, v in (kept | texts).items()}))[0]


@examples(50)
@given(scenarios(), st.sampled_from([4096, 2**17, 2**20]), st.integers(1, 5000))
def test_every_option_gains_what_it_says_and_those_that_help_lead(
    found: Scenario, tokens: int, load: int
) -> None:
    before, options = tightest_free_bytes(found, tokens, load), advise(found, tokens, load)
    lucky = [option.fits for option in options]
    assert lucky == sorted(lucky, reverse=True)
    for option in options:
        if option.change.startswith(("without", "--concurrency", "--context")):
            continue
        after = typed(found, option.change)
        assert tightest_free_bytes(after, tokens, load) - before == option.freed_bytes
        assert option.freed_bytes > 0 or option.concurrency > max_concurrency(found, tokens)
        assert fits(after, tokens, load) == option.fits
        assert max_concurrency(after, tokens) == option.concurrency


@pytest.mark.parametrize("model", ["v4-flash", "v4-pro"])
@pytest.mark.parametrize("engine", ["dsv4kv", "vllm:0.33", "sglang:0.5.23", "trtllm"])
def test_the_first_option_is_the_best_of_all_combinations(engine: str, model: str) -> None:
    found, tokens = scenario(gpu="b200", gpus="8", engine=engine, model=model), 2**17
    each = list(_changes(found, (tokens, 1)))
    most = 0
    for taken in chain.from_iterable(combinations(each, n) for n in range(1, len(each) + 1)):
        names = [name for one in taken for name in one.inputs]
        if len(set(names)) == len(names):
            with suppress(ConfigError):
                most = max(most, max_concurrency(_apply(found, taken), tokens))
    first = advise(found, tokens, 1)[0]
    assert 0.98 * most <= first.concurrency <= most
    assert engine == "dsv4kv" or launch_line(first.scenario, tokens, first.concurrency)


def test_everything_that_could_be_smaller_is_offered() -> None:
    wasteful = scenario(
        hbm="200GiB",
        gpus="8",
        main_format="bf16",
        window_format="bf16",
        indexer_format="bf16",
        block_tokens="512",
        draft_layers="1",
        draft_tokens="2",
    )
    assert {option.change for option in advise(wasteful, 100_100, 80)} == {
        "--tp 1 --dp 8 --indexer-format mxfp4 --main-format fp8_ds_mla --memory-fraction 0.95",
        "--step-tokens 2048",
        "--tp 1 --dp 8",
        "--tp 2 --dp 4",
        "--tp 4 --dp 2",
        "without --block-tokens",
        "without drafts",
        "--indexer-format mxfp4",
        "--main-format fp8_ds_mla",
        "--window-format fp8_ds_mla",
        "--memory-fraction 0.95",
    }


def test_a_limit_of_requests_that_binds_is_advised_to_be_raised() -> None:
    found = scenario(gpus="8", tp="1", engine="sglang:0.5.23")
    raised = advise(found, 131_072, 256)[0]
    assert (raised.change, max_concurrency(found, 131_072)) == ("--max-running-requests 512", 256)
    assert raised.concurrency == 512


@pytest.mark.parametrize(
    ("engine", "drafts", "model"),
    [("vllm:0.33", 3, "v4-flash"), ("sglang:0.5.23", 1, "v4-pro"), ("vllm:0.26", 0, "v4-pro")],
)
def test_layers_are_spread_as_the_best_of_all_partitions_is(
    engine: str, drafts: int, model: str
) -> None:
    asked = (131_072, 4)
    given = {"model": model, "engine": engine, "pp": "2", "tp": "8", "draft_layers": str(drafts)}
    found = scenario(gpu="b300", gpus="16", **given)
    layers = found.config.num_layers

    def free(first: int) -> int:
        sizes = f"{first},{layers - first}"
        return tightest_free_bytes(
            scenario(gpu="b300", gpus="16", stage_layers=sizes, **given), *asked
        )

    best = max(range(2, layers - 1), key=free)
    first, _ = spread_layers(found, *asked)
    assert free(first) == free(best)


def test_stages_that_are_not_the_models_layers_are_a_sentence() -> None:
    with pytest.raises(ConfigError, match="add up to the 43 layers of v4-flash"):
        _ = scenario(pp="2", tp="1", gpus="2", stage_layers="20,20").stages


@pytest.mark.parametrize(
    ("requests", "context", "least"),
    [(16, 9_216, 16 * (9_216 + 512) + 9_216), (1, 1_024, 2_560), (64, 9_472, 648_448)],
)
def test_a_decode_pool_holds_every_request_its_reserve_and_one_in_transfer(
    requests: int, context: int, least: int
) -> None:
    """A published pool for 16 requests of 8,192 + 1,024 is 163,840: one answer less."""
    found = answer(
        ask(engine="sglang", gpu="b300", gpus="8", tp="8", role="decode", model="v4-flash",
            context=str(context), concurrency=str(requests))
    )  # fmt: skip
    assert found.decode_pool_tokens == least
    assert found.decode_pool_tokens % 256 == 0


def test_one_live_session_is_not_offered_to_be_two() -> None:
    options = advise(scenario(engine="ds4", gpus="2"), 2**17, 1)
    assert options
    assert not any("request_limit" in each.inputs for each in options)
