"""Synthetic requests follow the distributions asked for, and share exactly what the tree says."""

import gzip
import itertools
import math
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.config.bench import Lengths, Synthetic
from dsv4kv.traces import resolve_trace, write_trace
from dsv4kv.traces.synth import CONVERSATIONS, SEED, chat_trace, synthesize

SMALL = st.builds(
    Synthetic, requests=st.integers(1, 12),
    input=st.builds(Lengths, kind=st.just("uniform"), low=st.just(1), high=st.integers(1, 40)),
    output=st.just(Lengths(kind="fixed", mean=1)), prefix_branches=st.integers(0, 3),
    prefix_depth=st.integers(1, 3), prefix_tokens=st.integers(1, 12),
    hash_block_tokens=st.integers(1, 9),
)  # fmt: skip


def token_texts(settings: Synthetic, seed: int) -> list[list[tuple[object, ...]]]:
    """Spell out every prompt token by token: which shared text it is of, or whose own."""
    walks = np.random.default_rng(seed).spawn(4)[3]
    texts = []
    for number, request in enumerate(synthesize(settings, seed)):
        walk: list[int] = []
        if settings.prefix_branches:
            walk = walks.integers(settings.prefix_branches, size=settings.prefix_depth).tolist()
        shared: list[tuple[object, ...]] = [
            (*walk[: level + 1], "token", index)
            for level in range(len(walk))
            for index in range(settings.prefix_tokens)
        ]
        own = [("own", number, index) for index in range(request.input_tokens)]
        texts.append((shared + own)[: request.input_tokens])
    return texts


@given(SMALL, st.integers(0, 1000))
def test_ids_are_equal_where_block_and_history_are(settings: Synthetic, seed: int) -> None:
    ids: dict[tuple[object, ...], int] = {}
    size = settings.hash_block_tokens
    for request, text in zip(synthesize(settings, seed), token_texts(settings, seed), strict=True):
        ends = [*range(size, len(text), size), len(text)]
        assert len(request.prefix_hashes) == len(ends)
        for block_id, end in zip(request.prefix_hashes, ends, strict=True):
            # the block's start follows from its end, so text up to its end is all there is to it
            assert ids.setdefault(tuple(text[:end]), block_id) == block_id
    assert len(set(ids.values())) == len(ids)


@given(SMALL, st.integers(0, 1000))
def test_more_requests_go_on_where_fewer_end(settings: Synthetic, seed: int) -> None:
    longer = settings.model_copy(update={"requests": settings.requests + 5})
    fewer = list(synthesize(settings, seed))
    assert list(itertools.islice(synthesize(longer, seed), len(fewer))) == fewer


def input_lengths(lengths: Lengths) -> list[int]:
    settings = Synthetic(requests=4000, input=lengths, hash_block_tokens=2**20)
    return [request.input_tokens for request in synthesize(settings, 0)]


@pytest.mark.parametrize("sigma", [0.0, 0.5, 0.8])
def test_log_normal_lengths_have_the_mean_and_spread_asked_for(sigma: float) -> None:
    drawn = np.array(input_lengths(Lengths(mean=1000, sigma=sigma, high=10**7)))
    # four standard errors of the mean of a log-normal
    error = 4 * 1000 * math.sqrt(math.expm1(sigma**2) / drawn.size) + 0.5
    assert drawn.mean() == pytest.approx(1000, abs=error)
    assert np.log(drawn).std() == pytest.approx(sigma, abs=0.05)


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential() -> None:
    settings = Synthetic(requests=4000, arrival_rate=5.0)
    arrivals = np.array([request.arrival_s for request in synthesize(settings, 0)])
    gaps = np.diff(arrivals, prepend=0.0)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(0.2, rel=4 / math.sqrt(4000))
    assert gaps.std() == pytest.approx(0.2, rel=0.1)


def test_the_shipped_trace_is_what_the_generator_makes_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl.gz"
    write_trace(chat_trace(CONVERSATIONS, SEED), path)
    made, shipped = path.read_bytes(), resolve_trace("builtin:chat").read_bytes()
    assert gzip.decompress(made) == gzip.decompress(shipped)
    if zlib.ZLIB_RUNTIME_VERSION.startswith("1.2."):  # others may compress the same text better
        assert made == shipped
