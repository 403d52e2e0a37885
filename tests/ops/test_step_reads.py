"""Bytes and operations of a decode step's reads, by context and model, against literal counts."""

import numpy as np
import pytest

from dsv4kv.model.config import Candidates, DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import LayerCacheSchema, build_schema, choose_formats
from dsv4kv.ops.work import Read, decode_reads

K, M = 2**10, 2**20


def schemas(config: DSV4Config, keys: str | None = None) -> list[LayerCacheSchema]:
    formats = choose_formats(config, indexer=keys)
    return [build_schema(config, spec, formats=formats) for spec in build_schedule(config)]


def step(config: DSV4Config, layers: list[LayerCacheSchema], *tokens: int) -> list[Read]:
    return list(decode_reads(config, layers, np.array(tokens)))


def reads(name: str, tokens: int, keys: str | None = None) -> list[Read]:
    config = load_model(name)
    return step(config, schemas(config, keys), tokens)


def total(reads: list[Read], *operations: str) -> tuple[int, int, int]:
    """Cache bytes, query bytes and FLOPs of operations of a step of one request."""
    mine = [read for read in reads if read.operation in operations]
    query = [len(read.layers) * len(read.flops) * read.query_bytes for read in mine]
    moved = [len(read.layers) * read.step_bytes(np.array([-1])) for read in mine]
    work = [len(read.layers) * int(read.flops.sum()) for read in mine]
    return sum(moved) - sum(query), sum(query), sum(work)


def by_layer(reads: list[Read], operation: str) -> dict[int, Read]:
    mine = [read for read in reads if read.operation == operation]
    return {layer: read for read in mine for layer in read.layers}


def test_a_step_of_v4_flash_at_128k_is_counted_by_hand() -> None:
    found = reads("v4-flash", 128 * K, "mxfp4")
    keys = 128 * K // 4  # of each of 21 layers; in blocks of 32
    assert total(found, "index_scores") == (
        21 * (keys * 68 + keys // 32 * 4 + keys * 4),
        21 * 64 * (128 + 4),
        21 * keys * 64 * 128 * 2,
    )
    assert total(found, "select_topk") == (21 * (keys * 4 + 512 * 8), 0, 0)
    # bf16 vectors in, e4m3 out; a weight in and out; 64 turns.
    assert total(found, "indexer_query") == (0, 21 * (64 * (256 + 128 + 4 + 4) + 64 * 4), 0)
    csa, hca, swa = 512 * (584 + 4), 1024 * (584 + 4), 0  # indices; a table of one entry a block
    window = 128 * 584
    assert total(found, "attend") == (
        21 * (csa + window) + 20 * (hca + window) + 2 * (swa + window),
        43 * (8 + 64 * (2 * 1024 + 4)),
        (21 * (512 + 128) + 20 * (1024 + 128) + 2 * 128) * 64 * 512 * 4,
    )


def test_a_short_request_has_few_entries_and_a_short_window() -> None:
    found = reads("v4-flash", 100)
    assert total(found, "index_scores")[2] == 21 * 25 * 64 * 128 * 2
    attended = 43 * 100 + 21 * 25  # no HCA entry is complete
    assert total(found, "attend")[2] == attended * 64 * 512 * 4


def test_a_request_of_one_token_reads_its_window_of_one() -> None:
    found = reads("v4-flash", 1)
    assert total(found, "index_scores")[0] == 0
    assert total(found, "attend")[2] == 43 * 64 * 512 * 4


def test_drafts_share_keys_and_see_what_is_before_them() -> None:
    config = load_model("v4-flash")
    tokens = [4 * K - 1 + i for i in range(5)]
    found = step(config, schemas(config, "fp8"), *tokens)
    lengths = [n // 4 for n in tokens]
    assert lengths == [K - 1, K, K, K, K]
    scores = sum(lengths)
    assert total(found, "index_scores") == (
        21 * (K * 132 + 32 * 4 + scores * 4),
        21 * 5 * 64 * 132,
        21 * scores * 64 * 128 * 2,
    )
    assert total(found, "select_topk") == (21 * (scores * 4 + 5 * 512 * 8), 0, 0)


def test_v41_chooses_in_eight_layers_of_which_four_score_candidates_alone() -> None:
    found = reads("v4.1-flash", 128 * K)
    assert sorted(by_layer(found, "select_topk")) == [2, 8, 14, 20, 24, 28, 32, 36]
    scores = by_layer(found, "index_scores")
    scored = {layer: int(read.flops[0]) // (32 * 128 * 2) for layer, read in scores.items()}
    assert scored == {
        **dict.fromkeys((2, 8, 14), 64 * K),
        20: 128 * K,
        **dict.fromkeys((24, 28, 32, 36), 2048 * 8),
    }
    blocks = by_layer(found, "select_blocks")
    assert list(blocks) == [20]
    assert blocks[20].step_bytes() == 128 * K * 4 + 2048 * 4
    assert scores[24].own_bytes[0] == 2048 * 8 * (68 + 4) + 2048 * 4


@pytest.mark.parametrize(("length", "scored"), [(1, 1), (17, 17), (33, 17), (40, 24), (41, 17)])
def test_the_newest_block_is_scored_as_far_as_it_goes(length: int, scored: int) -> None:
    config = load_model("v4.1-flash").model_copy(
        update={"candidates": Candidates(source=20, blocks=3, block_entries=8)}
    )
    found = step(config, schemas(config), length)
    assert by_layer(found, "index_scores")[24].flops[0] == scored * 32 * 128 * 2


def test_candidates_narrow_no_scores_of_other_keys() -> None:
    """Layers after a source that read the keys of another layer score all of them."""
    config = load_model("v4.1-flash").model_copy(
        update={"candidates": Candidates(source=14, blocks=3, block_entries=8)}
    )
    scores = by_layer(step(config, schemas(config), 1024), "index_scores")
    assert scores[24].flops[0] == 1024 * 32 * 128 * 2


def test_layers_for_which_another_one_chooses_only_attend() -> None:
    """IndexCache on V4: a flag of the schedule."""
    config = load_model("v4-flash")
    sharing = config.model_copy(update={"index_sources": (2, 10, 18, 26, 34, 42)})
    every, some = (step(each, schemas(each), 128 * K) for each in (config, sharing))
    assert total(some, "index_scores")[0] * 21 == total(every, "index_scores")[0] * 6
    assert total(some, "attend") == total(every, "attend")


# Of the bytes that a step moves in its cache: (share of what chooses, share of attention), in %.
SHARES = {
    ("v4-flash", "mxfp4", 8 * K): (23, 72),
    ("v4-flash", "mxfp4", 128 * K): (70, 29),
    ("v4-flash", "mxfp4", M): (79, 20),
    ("v4-pro", "mxfp4", 128 * K): (64, 35),
    ("v4-flash", "fp8", 8 * K): (36, None),
    ("v4-flash", "fp8", 128 * K): (81, 19),
    ("v4-flash", "fp8", M): (87, None),
    ("v4-pro", "fp8", 128 * K): (76, None),
}


@pytest.mark.parametrize(("name", "keys", "tokens"), SHARES)
def test_the_shares_of_a_step_by_key_format(name: str, keys: str, tokens: int) -> None:
    config = load_model(name)
    layers = schemas(config, keys)
    found = step(config, layers, tokens)
    choosing = total(found, "index_scores", "select_topk")[0]
    attention = total(found, "attend")[0]
    moved = choosing + attention + sum(map(written, layers))
    for part, share in zip((choosing, attention), SHARES[name, keys, tokens], strict=True):
        if share is not None:
            assert 100 * part / moved == pytest.approx(share, abs=1)


def written(schema: LayerCacheSchema) -> int:
    """What a token writes to a layer, pooled entries left out: its window and its states."""
    state = [
        shape[-1] * 2 * 4 * 2
        for shape in (schema.state_shape, schema.indexer_state_shape)
        if shape
    ]
    return 1024 + 8 + 584 + sum(state)
