"""One question, asked in any direction, and deployments beside it."""

import re

import pytest

from dsv4kv.budget.answer import answer, lack_sentence
from dsv4kv.budget.fit import advise
from dsv4kv.errors import DoesNotFit
from tests.budget.questions import ask


def test_all_stages_take_what_the_smallest_holds_and_each_prints_its_line() -> None:
    found = answer(ask(engine="sglang", model="v4-pro", gpus="16", pp="2"))
    units = [stage.units for stage in found.stages if stage]
    assert found.capacity
    assert found.capacity.units == min(units) < max(units)
    layers = [line.split("layers=")[1] for line in found.log_lines if "PP slice" in line]
    assert layers == ["[0,30) local=30/62", "[30,61) local=31/62"]
    assert [line[:4] for line in found.log_lines] == ["PP0 ", "PP0 ", "PP1 ", "PP1 "]


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("sglang", "Loaded weights leave no GPU memory .* Raise --mem-fraction-static above 2.9"),
        ("vllm", "No available memory for the cache blocks. Try increasing `gpu_memory_utili"),
        ("dsv4kv", None),
    ],
)
def test_weights_that_leave_nothing_are_refused_in_the_engines_words(
    engine: str, said: str | None
) -> None:
    """SGLang 0.5.23: ``_profile_available_bytes``; vLLM 0.33.0: ``kv_cache_planning.py``."""
    found = answer(ask(engine=engine, model="v4-pro", gpus="2"))
    assert not found.fits
    assert found.capacity is None
    assert re.match(said, found.log_lines[0]) if said else found.log_lines == ()


@pytest.mark.parametrize(
    ("tokens", "drafts", "observed"),
    [(4_156 + 252, {}, 132), (4_144 + 257, {"draft_layers": "1", "draft_tokens": "2"}, 102)],
)
def test_as_many_run_as_were_seen_to_run(
    tokens: int, drafts: dict[str, str], observed: int
) -> None:
    """To an eighth: Flash on 8 x H100, SGLang 0.5.15's cookbook.

    A request that runs has its prompt and on average half of its output, by the means.
    """
    texts = {"gpu": "h100", "tp": "8", "dp": "1", "context": f"{tokens}"}
    found = answer(ask(engine="sglang:0.5.15", **texts, **drafts))
    assert found.max_concurrency == pytest.approx(observed, rel=1 / 8)


PRO = {"engine": "vllm:0.33", "model": "v4-pro", "gpus": "8"}


@pytest.mark.parametrize(
    "given", [{"kv_memory": "559GiB"}, {"kv_blocks": "1000000"}, {"kv_memory": "36GiB"}]
)
def test_a_cache_that_a_gpu_has_no_memory_for_does_not_start(given: dict[str, str]) -> None:
    found = answer(ask(**PRO, tp="8", **given))
    assert not found.fits
    assert (found.max_concurrency, found.log_lines) == (0, ())
    told = lack_sentence(found.scenario, found.context)
    assert "not start on 8 × h200 (TP8): weights (102 GiB), reserve (7" in told
    assert not [option for option in advise(found.scenario, found.context, 1) if option.fits]
    with pytest.raises(DoesNotFit, match="does not start on 1,024 × h200"):
        answer(ask(kv_memory="559GiB"))


@pytest.mark.parametrize("engine", ["dsv4kv", "vllm", "sglang"])
def test_the_fewest_gpus_may_be_replicas_of_one_gpu_each(engine: str) -> None:
    """100 requests of 1M tokens: DP8, where tensor parallelism would copy the cache 8 times."""
    found = answer(ask(engine=engine, context="1M", concurrency="100")).scenario.layout
    assert (found.label, found.gpus) == ("DP8 EP8", 8)
    alone = answer(ask(engine=engine, context="1M", concurrency="1")).scenario.layout
    assert alone.dp == 1
