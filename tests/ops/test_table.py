"""Bytes that operations must move, summed by hand from the layouts."""

import pytest

from dsv4kv.model.formats import entry_format
from dsv4kv.ops import spec
from tests.ops.samples import full_size_compressor

FP8_DS_MLA = entry_format("main", "fp8_ds_mla")
MXFP4 = entry_format("indexer", "mxfp4")
CSA, HCA, INDEXER = (full_size_compressor(kind) for kind in ("csa", "hca", "indexer"))

# An fp8_ds_mla entry is 584 B and decodes to 512 bf16, 1024 B: 1608 B. An mxfp4 key is 68 B and
# decodes to 128 bf16, 256 B.


def test_insert_reads_value_and_index_and_writes_the_entry() -> None:
    assert spec.insert_bytes(FP8_DS_MLA, 1) == 1616
    assert spec.insert_bytes(FP8_DS_MLA, 1000) == 1_616_000
    assert spec.insert_bytes(MXFP4, 10) == 10 * (256 + 8 + 68)


def test_topk_gather_moves_an_int32_index_and_1608_bytes_per_entry() -> None:
    assert spec.gather_topk_bytes(FP8_DS_MLA, 1, 1) == 1612
    assert spec.gather_topk_bytes(FP8_DS_MLA, 512, 512) == 512 * 1612


def test_topk_gather_pays_four_bytes_for_an_index_of_nothing() -> None:
    assert spec.gather_topk_bytes(FP8_DS_MLA, 10, 16) == 10 * 1608 + 16 * 4


def test_dense_gather_moves_1608_bytes_per_entry_and_4_per_block() -> None:
    assert spec.gather_all_bytes(FP8_DS_MLA, 100, 4) == 100 * 1608 + 4 * 4
    assert spec.gather_all_bytes(MXFP4, 64, 2) == 64 * (68 + 256) + 2 * 4


def test_window_gather_moves_1608_bytes_per_entry_and_8_per_request() -> None:
    assert spec.gather_window_bytes(FP8_DS_MLA, 128, 1) == 128 * 1608 + 8
    assert spec.gather_window_bytes(FP8_DS_MLA, 3 * 128 + 5, 4) == 389 * 1608 + 4 * 8


def test_state_append_reads_and_writes_kv_and_score() -> None:
    assert spec.state_append_bytes(CSA, 1, online=False) == 2 * (1024 + 1024) * 4
    assert spec.state_append_bytes(HCA, 10, online=False) == 10 * 2 * (512 + 512) * 4
    assert spec.state_append_bytes(INDEXER, 1, online=False) == 2 * (256 + 256) * 4


def test_online_append_reads_two_rows_and_moves_three_twice() -> None:
    assert spec.state_append_bytes(HCA, 1, online=True) == (2 + 2 * 3) * 512 * 4


@pytest.mark.parametrize(
    ("rows", "moved"),
    [
        (8, spec.flush_bytes(CSA, FP8_DS_MLA, 1, online=False)),
        (128, spec.flush_bytes(HCA, FP8_DS_MLA, 1, online=False)),
        (1, spec.flush_bytes(HCA, FP8_DS_MLA, 1, online=True)),
    ],
    ids=["csa", "hca", "hca online"],
)
def test_flush_reads_512_channels_of_kv_and_score_per_row(rows: int, moved: int) -> None:
    assert moved == rows * 4096 + 584


def test_flush_of_indexer_keys_reads_8_rows_of_128_channels() -> None:
    assert spec.flush_bytes(INDEXER, MXFP4, 3, online=False) == 3 * (8 * 128 * 2 * 4 + 68)


@pytest.mark.parametrize(("tokens", "kept"), [(1000, 8), (5, 5)])
def test_chunk_reads_its_tokens_and_writes_entries_and_kept_rows(tokens: int, kept: int) -> None:
    moved = spec.compress_chunk_bytes(CSA, FP8_DS_MLA, tokens, tokens // 4, 8)
    assert moved == (tokens + kept) * 2 * 1024 * 4 + tokens // 4 * 584


@pytest.mark.parametrize(
    "moved",
    [
        spec.insert_bytes(FP8_DS_MLA, 0),
        spec.gather_topk_bytes(FP8_DS_MLA, 0, 0),
        spec.gather_all_bytes(FP8_DS_MLA, 0, 0),
        spec.gather_window_bytes(FP8_DS_MLA, 0, 0),
        spec.state_append_bytes(CSA, 0, online=False),
        spec.flush_bytes(CSA, FP8_DS_MLA, 0, online=False),
        spec.compress_chunk_bytes(CSA, FP8_DS_MLA, 0, 0, 8),
    ],
)
def test_doing_nothing_moves_nothing(moved: int) -> None:
    assert moved == 0


def test_an_indexer_query_is_read_in_bf16_and_written_in_e4m3() -> None:
    assert spec.indexer_query_bytes(3, 64, 128, 64) == 3 * (64 * (256 + 128 + 4 + 4) + 64 * 4)


def test_scores_read_every_key_once_and_write_one_number_each() -> None:
    keys, places, scores, heads = 1000, 32, 3000, 3 * 64
    assert spec.index_scores_bytes(MXFP4, keys, places, scores, heads) == (
        1000 * 68 + 32 * 4 + 3000 * 4 + 3 * 64 * (128 + 4)
    )


def test_choices_read_scores_and_write_numbers() -> None:
    assert spec.select_blocks_bytes(4096, 2048) == 4096 * 4 + 2048 * 4
    assert spec.select_topk_bytes(16384, 2048, 512) == 16384 * 4 + 2048 * 4 + 512 * (4 + 4)


def test_attention_reads_entries_and_queries_and_writes_outputs_and_lse() -> None:
    assert spec.attended_bytes(FP8_DS_MLA, 640, 512) == 640 * 584 + 512 * 4
    assert spec.attend_query_bytes(2, 128, 512) == 2 * (8 + 128 * (1024 + 1024 + 4))


def test_a_key_takes_16_kflop_of_64_heads_and_an_entry_262_of_128() -> None:
    assert spec.index_scores_flops(1, 64, 128) == 16_384
    assert spec.attend_flops(1, 128, 512) == 262_144
