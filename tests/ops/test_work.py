"""Bytes and operations of a decode step, by context and model, against literal counts."""

import numpy as np
import pytest

from dsv4kv.model.config import Candidates, DSV4Config, build_schedule
from dsv4kv.model.plan import LayerCacheSchema, build_schema, choose_formats
from dsv4kv.model.presets import load_model
from dsv4kv.ops.work import StepWork, Work

K, M = 2**10, 2**20


def schemas(config: DSV4Config, keys: str | None = None) -> list[LayerCacheSchema]:
    formats = choose_formats(config, indexer=keys)
    return [build_schema(config, spec, formats=formats) for spec in build_schedule(config)]


class Step:
    """One token of each of some requests, or some of one."""

    def __init__(self, model: str | DSV4Config, *after: int, keys: str | None = None) -> None:
        config = load_model(model) if isinstance(model, str) else model
        self.schemas, tokens = schemas(config, keys), np.array(after)
        consecutive = len(after) > 1 and after[1] == after[0] + 1
        self._work = StepWork(
            config, self.schemas, tokens[-1:] if consecutive else tokens, tokens - 1
        )

    def of(self, operation: str, layer: int, *, indexer: bool = False) -> Work:
        return self._work.of(operation, self.schemas[layer], indexer=indexer)

    def layers(self, *operations: str) -> dict[int, Work]:
        """Of the layers that have such operations; what chooses only those that select have."""
        chosen = [
            n
            for n, schema in enumerate(self.schemas)
            if operations == ("attend",)
            or (schema.layer.selects and self.schemas[schema.layer.kv_owner].indexer)
        ]
        found = {}
        for n in chosen:
            _, moved, flops = np.sum([self.of(each, n) for each in operations], axis=0).tolist()
            found[n] = self.of(operations[0], n)[0], moved, flops
        return found

    def total(self, *operations: str) -> tuple[int, int]:
        """Bytes and FLOPs of all layers."""
        found = list(self.layers(*operations).values())
        return sum(moved for _, moved, _ in found), sum(flops for *_, flops in found)


# An fp8_ds_mla entry is 584 B and decodes to 512 bf16, 1024 B: 1608 B. An mxfp4 key is 68 B and
# decodes to 128 bf16, 256 B. A CSA token has 1024 floats of kv and as many of score, HCA 512; its
# indexer 256. Layers of V4-Flash: 0 SWA, 2 CSA, 3 HCA.
AFTER = 4 * K - 2, 4 * K - 1, 4 * K  # two of four tokens of a group, and its last
WRITTEN = {
    ("window_insert", 0, False): (3, 3 * (1024 + 8 + 584)),
    ("state_append", 2, False): (3, 3 * 4 * 1024 * 4),
    ("state_append", 2, True): (3, 3 * 4 * 256 * 4),
    ("state_append", 3, False): (3, 3 * 4 * 512 * 4),
    ("flush", 2, False): (1, 8 * 512 * 2 * 4 + 584),
    ("flush", 2, True): (1, 8 * 128 * 2 * 4 + 68),
    ("flush", 3, False): (1, 128 * 512 * 2 * 4 + 584),
    ("compress_chunk", 2, False): (3, 6 * 2 * 1024 * 4 + 584),
    # the last of the pooled rows is still at hand
    ("step_write", 3, False): (3, 3 * 1616 + 3 * 4 * 512 * 4 + 127 * 512 * 2 * 4 + 584),
    ("step_write", 2, False): (
        3,
        3 * 1616 + 3 * 4 * (1024 + 256) * 4 + 7 * (512 + 128) * 2 * 4 + 584 + 68,
    ),
    ("gather_window", 0, False): (128, 128 * 1608 + 8),
    ("gather_topk", 2, False): (512, 512 * 1608 + 512 * 4),
    ("gather_all", 2, True): (K, K * (68 + 256) + 32 * 4),
    ("gather_all", 3, False): (32, 32 * 1608 + 32 * 4),
}


@pytest.mark.parametrize(("operation", "layer", "indexer"), WRITTEN)
def test_what_a_layer_writes_and_gathers_is_counted_by_hand(
    operation: str, layer: int, indexer: bool
) -> None:
    found = Step("v4-flash", *AFTER).of(operation, layer, indexer=indexer)
    assert found == (*WRITTEN[operation, layer, indexer], 0)


def test_an_online_state_is_a_running_sum() -> None:
    config = load_model("v4-flash")
    layers = [build_schema(config, s, state="online") for s in build_schedule(config, layers=[3])]
    work = StepWork(config, layers, np.array([128]), np.array([127]))
    expected = {"state_append": 8 * 512 * 4, "flush": 2 * 512 * 4 + 584}
    for operation, moved in expected.items():
        assert work.of(operation, layers[0], indexer=False) == (1, moved, 0)
    fused = work.of("step_write", layers[0], indexer=False)[1]
    assert fused == 1616 + sum(expected.values()) - 2 * 512 * 4


def test_a_step_of_v4_flash_at_128k_is_counted_by_hand() -> None:
    found = Step("v4-flash", 128 * K, keys="mxfp4")
    keys = 128 * K // 4  # of each of 21 layers; in blocks of 32
    assert found.total("index_scores") == (
        21 * (keys * 68 + keys // 32 * 4 + keys * 4 + 64 * (128 + 4)),
        21 * keys * 64 * 128 * 2,
    )
    assert found.total("select_topk") == (21 * (keys * 4 + 512 * 8), 0)
    # bf16 vectors in, e4m3 out; a weight in and out; 64 turns.
    assert found.total("indexer_query") == (21 * (64 * (256 + 128 + 4 + 4) + 64 * 4), 0)
    csa, hca, swa = 512 * (584 + 4), 1024 * (584 + 4), 0  # indices; a table of one entry a block
    window = 128 * 584
    assert found.total("attend") == (
        21 * (csa + window) + 20 * (hca + window) + 2 * (swa + window)
        + 43 * (8 + 64 * (2 * 1024 + 4)),
        (21 * (512 + 128) + 20 * (1024 + 128) + 2 * 128) * 64 * 512 * 4,
    )  # fmt: skip


def test_v41_chooses_in_eight_layers_of_which_four_score_candidates_alone() -> None:
    found = Step("v4.1-flash", 128 * K)
    scores = found.layers("index_scores")
    assert {layer: work[0] for layer, work in scores.items()} == {
        **dict.fromkeys((2, 8, 14), 64 * K),
        20: 128 * K,
        **dict.fromkeys((24, 28, 32, 36), 2048 * 8),
    }
    assert found.of("select_blocks", 20) == (1, 128 * K * 4 + 2048 * 4, 0)
    assert scores[24][1] == 2048 * 8 * (68 + 4) + 2048 * 4 + 32 * (128 + 4)
    assert found.of("select_topk", 24)[1] == 2048 * 8 * 4 + (2048 + 2 * 512) * 4


@pytest.mark.parametrize(
    ("source", "length", "scored"),
    [(20, 1, 1), (20, 17, 17), (20, 33, 17), (20, 40, 24), (20, 41, 17), (14, 1024, 1024)],
)
def test_the_newest_block_is_scored_as_far_as_it_goes(
    source: int, length: int, scored: int
) -> None:
    """And layers after a source that read the keys of another layer score all of them."""
    config = load_model("v4.1-flash").model_copy(
        update={"candidates": Candidates(source=source, blocks=3, block_entries=8)}
    )
    assert Step(config, length).of("index_scores", 24)[2] == scored * 32 * 128 * 2
