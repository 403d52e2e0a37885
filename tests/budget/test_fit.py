"""What fits follows from one forward function, and every inverse question agrees with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget import fit as ft
from dsv4kv.budget.answer import answer, peak_lines
from dsv4kv.budget.inputs import read_inputs
from dsv4kv.budget.scenario import Scenario, resolve
from tests.budget.questions import ENGINES, ask, scenario, scenarios
from tests.examples import examples

CONTEXTS = st.integers(1, 2**20)
LOADS = st.integers(1, 3000)
FEW = examples(60)


@FEW
@given(scenarios(), CONTEXTS, CONTEXTS, LOADS)
def test_a_longer_context_never_leaves_more(
    found: Scenario, one: int, other: int, load: int
) -> None:
    short, long = sorted((one, other))
    left = [ft.tightest_free_bytes(found, tokens, load) for tokens in (long, short)]
    assert left == sorted(left)


@FEW
@given(scenarios(), CONTEXTS, LOADS, LOADS)
def test_more_requests_never_leave_more(
    found: Scenario, tokens: int, one: int, other: int
) -> None:
    few, many = sorted((one, other))
    left = [ft.tightest_free_bytes(found, tokens, load) for load in (many, few)]
    assert left == sorted(left)


@FEW
@given(ENGINES, st.integers(20, 400), st.integers(20, 400), CONTEXTS)
def test_more_memory_never_holds_fewer_requests(
    engine: str, one: int, other: int, tokens: int
) -> None:
    """Of equal chunks: from 160 GiB on the engines take larger ones unasked, which cost more."""
    held = [
        ft.max_concurrency(
            scenario(engine=engine, hbm=f"{size}GiB", gpus="8", step_tokens="8192"), tokens
        )
        for size in sorted((one, other))
    ]
    assert held == sorted(held)


@FEW
@given(scenarios(), CONTEXTS)
def test_the_most_requests_fit_and_one_more_a_replica_does_not(
    found: Scenario, tokens: int
) -> None:
    most, replicas = ft.max_concurrency(found, tokens), found.layout.dp
    assert most % replicas == 0
    assert most == 0 or ft.fits(found, tokens, most)
    assert not ft.fits(found, tokens, most + 1)


@FEW
@given(scenarios(), LOADS)
def test_the_longest_context_fits_and_one_token_more_does_not(found: Scenario, load: int) -> None:
    longest, limit = ft.max_context(found, load), found.config.max_context_tokens
    assert 0 <= longest <= limit
    assert longest == 0 or ft.fits(found, longest, load)
    assert longest == limit or not ft.fits(found, longest + 1, load)


@FEW
@given(scenarios(), CONTEXTS, LOADS)
def test_the_parts_of_a_gpu_add_up_and_none_is_negative(
    found: Scenario, tokens: int, load: int
) -> None:
    use = ft.use_of(found, tokens, load)
    parts = (use.weights, use.reserve, use.transient, use.shared, use.fixed, use.in_flight)
    assert all(part >= 0 for part in (*parts, use.tokens, use.lost))
    assert sum(parts) + use.tokens + use.lost + use.free == use.budget
    assert use.free == ft.free_bytes(found, use.stage, tokens, load)
    assert use.free == min(
        ft.free_bytes(found, stage, tokens, load) for stage in range(found.layout.pp)
    )


@pytest.mark.parametrize(
    ("rows", "context", "expected_gib"),
    [(4096, 372_000, 1.42), (4096, 800_000, 3.05), (8192, 1_048_576, 8.0)],
)
def test_logits_of_a_chunk_have_their_published_size(
    rows: int, context: int, expected_gib: float
) -> None:
    assert round(ft.indexer_logits_bytes(rows, context) / 2**30, 2) == expected_gib


TIGHT = {"engine": "sglang", "gpu": "b200", "model": "v4-pro", "request_limit": "512"}
PEAKS = [
    {"engine": engine, "model": model}
    for engine in ("dsv4kv", "vllm:0.26", "vllm:0.33", "sglang:0.5.23", "trtllm")
    for model in ("v4-flash", "v4-pro")
] + [
    TIGHT | {"memory_fraction": share, "dp": replicas, "step_tokens": chunk}
    for share, replicas, chunk in (("0.9", "8", "4096"), ("0.8", "1", "65536"))
]


@pytest.mark.parametrize("texts", PEAKS, ids=lambda texts: " ".join(texts.values()))
def test_what_is_taken_and_what_is_left_are_the_whole(texts: dict[str, str]) -> None:
    """And parts of what is left free are together never larger than it."""
    found = answer(ask(gpus="8", **texts))
    lines = list(peak_lines(found))
    sums = {kind: sum(line.size_bytes for line in lines if line.kind == kind)
            for kind in ("whole", "taken", "left")}  # fmt: skip
    assert sums["taken"] + sums["left"] == sums["whole"] == found.scenario.gpu.memory_bytes
    assert sums["left"] == ft.available_bytes(found.scenario, found.use.stage, found.context)
    assert all(line.source for line in lines if line.kind != "left")
    whole = parts = 0
    for line in lines:
        if line.kind == "part":
            parts += line.size_bytes
        else:
            assert parts <= whole
            whole, parts = line.size_bytes, 0


@pytest.mark.parametrize("fraction", ["0.2", "0.4", "0.9"])
def test_what_a_gpu_lacks_is_no_share_of_itself(fraction: str) -> None:
    texts = {"model": "v4-pro", "engine": "trtllm", "gpu": "h200", "gpus": "4", "tp": "4"}
    (found,) = resolve(read_inputs(texts | {"memory-fraction": fraction}))
    taken = found.weight_bytes[0] + found.reserve_bytes(0, 8192)
    lacking = found.budget_bytes - taken - ft.transient_bytes(found, 8192)
    assert ft.available_bytes(found, 0, 8192) == lacking < 0
