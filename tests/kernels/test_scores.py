"""Indexer queries and scores on the CPU twin: the reference's, whatever shares the keys out."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.model.presets import load_model
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.compressor import rope_rows
from dsv4kv.ops.kernels.scores import plan_index_scores, plan_indexer_query
from dsv4kv.ops.storage import PageStore
from tests.kernels.launches import GuardedOutput, each_order
from tests.kernels.shim.twin import run
from tests.ops.reads.scenes import make_cache, relative_error, share_pages
from tests.ops.samples import generator, same_bits

HEADS = 12
"""A tile of 8 and one that is filled up."""

ERROR = 2.0**-20
"""Of a twin's score, against a token's largest: sums are in float32, and a product of 128 channels
is rounded up to four times. A GPU's tensor cores may drop more, see ``shim.h``."""

BLOCKS = torch.tensor(
    [[0, 1, -1], [2, 5, 7], [-1, 3, 4], [0, 8, 2**28], [1, 2, 3], [0, -1, -1]], dtype=torch.int32
)


def random_query(tokens: int, seed: int) -> tuple[Tensor, Tensor]:
    """Queries e4m3 as uint8[T, HEADS, 128], and weights of either sign."""
    random = generator(seed)
    values = 8 * torch.randn(tokens, HEADS, 128, generator=random)
    return values.to(torch.float8_e4m3fn).view(torch.uint8), torch.randn(
        tokens, HEADS, generator=random
    )


@pytest.mark.parametrize("blocks", [None, BLOCKS], ids=["all", "blocks"])
@pytest.mark.parametrize("name", FORMATS["indexer"])
def test_scores_are_the_references_however_many_blocks_share_the_keys(
    name: str, blocks: Tensor | None
) -> None:
    """Three tokens of a request share a read; what is no key's is NaN, and is never multiplied."""
    cache = make_cache(FORMATS["indexer"][name], seed=1)
    queries, weights = random_query(6, seed=2)
    longest, found = int(cache.lengths.max()), []
    where = cache.store, cache.table, cache.slots, cache.lengths, queries, weights, blocks
    for grid, order in ((3, 0), (1, 1), (264, 7)):
        guarded = GuardedOutput.of(
            6, 24 if blocks is not None else longest + 6, dtype=torch.float32
        )
        launch = replace(plan_index_scores(*where, guarded.out), grid=(grid, 1))
        run(launch, reverse=order == 1, seed=order)
        found.append(guarded.content()[:, :longest])
    right = torch.empty_like(guarded.out)
    reference.index_scores(*where, right)
    assert relative_error(found[0], right[:, :longest]) < ERROR
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])


def test_keys_of_shared_pages_are_scored_at_every_place() -> None:
    cache = share_pages(make_cache(FORMATS["indexer"]["mxfp4"], seed=1))
    queries, weights = random_query(6, seed=2)
    longest = int(cache.lengths.max())
    where = cache.store, cache.table, cache.slots, cache.lengths, queries, weights, None
    guarded = GuardedOutput.of(6, longest, dtype=torch.float32)
    run(replace(plan_index_scores(*where, guarded.out), grid=(3, 1)))
    right = torch.empty_like(guarded.out)
    reference.index_scores(*where, right)
    assert relative_error(guarded.content(), right) < ERROR


def test_of_a_request_that_has_no_slot_or_no_pages_nothing_is_read() -> None:
    cache = make_cache(FORMATS["indexer"]["fp8"], seed=4)
    table = torch.tensor([[-1, 2**31 - 1], [20, -7]], dtype=torch.int32)
    slots = torch.tensor([0, 1, 2, -5, 2**62])
    queries, weights = random_query(5, seed=5)
    guarded = GuardedOutput.of(5, 70, dtype=torch.float32)
    lengths = torch.full((5,), 2**62)
    plan = plan_index_scores(
        cache.store, table, slots, lengths, queries, weights, None, guarded.out
    )
    run(plan)
    assert (guarded.content() == -torch.inf).all()


def test_keys_of_other_sizes_are_refused() -> None:
    layout = PageLayout(FORMATS["main"]["bf16"], 32)
    store = PageStore.allocate(layout, 1, torch.device("meta"))
    nothing = torch.empty(0, device="meta")
    with pytest.raises(ConfigError, match=r"^indexer keys of 512 channels cannot be scored"):
        plan_index_scores(
            store, nothing, nothing, nothing, torch.empty(1, 2, 512), nothing, None, nothing
        )


@each_order
@pytest.mark.parametrize("hadamard", [False, True])
def test_queries_have_the_bits_of_the_cpu_backend(hadamard: bool, reverse: bool) -> None:
    random, tokens, heads = generator(6), 3, 5
    powers = 2.0 ** torch.randint(-9, 9, (tokens, heads, 1), generator=random)
    queries = (torch.randn(tokens, heads, 128, generator=random) * powers).bfloat16()
    queries[1, 2] = 0
    weights = torch.randn(tokens, heads, generator=random)
    turns = rope_rows(load_model("v4-flash"), 4, torch.tensor([0, 70_001, 1_048_575]))
    codes = GuardedOutput.of(tokens, heads, 128, dtype=torch.uint8)
    folded = GuardedOutput.of(tokens, heads, dtype=torch.float32)
    given = queries, weights, turns, hadamard
    run(plan_indexer_query(*given, codes.out, folded.out), reverse=reverse)
    right, right_weights = torch.empty_like(codes.out), torch.empty_like(folded.out)
    cpu.indexer_query(*given, right, right_weights)
    assert same_bits(codes.content(), right)
    assert same_bits(folded.content(), right_weights)
