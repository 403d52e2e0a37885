"""Reads and RoPE against what engines' own torch references made of the same inputs.

Each file of ``data`` names its source and holds inputs and answers.
"""

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dsv4kv.model.config import inverse_frequencies
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.presets import load_model
from dsv4kv.ops.storage import Entries, PageStore, rope_rows
from tests.ops.samples import each_backend

DATA = Path(__file__).with_name("data")
ATTENTION, CANDIDATES = (
    json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    for name in ("attention_flashmla", "candidates_sglang_0_5_23")
)
DIMS, HEADS, PAGE = 8, 2, 4


def store_of(values: list[float]) -> PageStore:
    pages = torch.tensor(values).bfloat16().view(-1, PAGE * DIMS).view(torch.uint8)
    return PageStore(PageLayout(EntryFormat("bf16", "bf16", DIMS), PAGE), pages)


@each_backend
def test_attention_is_flashmlas(backend: ModuleType) -> None:
    """Chosen entries of which one is there twice, a sink of −∞, a token that sees nothing."""
    case = ATTENTION
    slots, tokens, lengths = (torch.tensor(case[name]) for name in ("slots", "tokens", "lengths"))
    table, indices = (torch.tensor(case[name]).int() for name in ("table", "indices"))
    queries = torch.tensor(case["queries"]).bfloat16().view(-1, HEADS, DIMS)
    sinks = torch.tensor([-math.inf if each is None else each for each in case["sinks"]])
    out, lse = torch.empty_like(queries), torch.empty(len(queries), HEADS)
    entries = Entries(store_of(case["store"]), table, lengths, indices)
    ring = store_of(case["ring"])
    backend.attend(
        ring, slots, tokens, case["window"], entries, queries, sinks, case["scale"], out, lse
    )
    right = torch.tensor(case["out"]).view_as(out)
    torch.testing.assert_close(out.float(), right, rtol=2.0**-8, atol=0)  # a step of bf16
    sums = torch.tensor([math.inf if each is None else each for each in case["lse"]])
    torch.testing.assert_close(lse, sums.view_as(lse), rtol=1e-6, atol=1e-6)


@each_backend
@pytest.mark.parametrize("row", CANDIDATES["rows"], ids=lambda row: f"of {row['length']}")
def test_candidates_and_what_is_chosen_of_them_are_sglangs(
    backend: ModuleType, row: dict[str, Any]
) -> None:
    size, count, lengths = CANDIDATES["block_entries"], 3, torch.tensor([row["length"]])
    scores = torch.tensor([row["scores"]])
    blocks = torch.full((1, count), -7, dtype=torch.int32)
    backend.select_blocks(scores, lengths, size, blocks)
    assert blocks[0].tolist() == padded(row["blocks"], count)

    columns = torch.full((1, count * size), -math.inf)
    for n, block in enumerate(row["blocks"]):
        columns[0, n * size : n * size + size] = scores[0, block * size : block * size + size]
    table, out = torch.zeros(1, 1, dtype=torch.int32), torch.full((1, 10), -7, dtype=torch.int32)
    entries, slots = torch.empty_like(out), torch.tensor([0])
    backend.select_topk(columns, lengths, blocks, table, slots, 128, out, entries)
    assert out[0].tolist() == padded(row["topk"], 10)
    assert torch.equal(entries, out)  # of the first page


def padded(chosen: list[int], count: int) -> list[int]:
    return chosen + [-1] * (count - len(chosen))


# ---- cosines and sines of vLLM, made on a CPU and kept as hex ---------------------------------


CONFIG = load_model("v4-flash")
RECORDED = json.loads((DATA / "rope_vllm_0_33.json").read_text())
ROWS = {int(position): row for position, row in RECORDED["rows"].items()}


def _floats(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytes.fromhex(text), "<f4").copy())


def test_frequencies_have_the_bits_of_vllms() -> None:
    found = torch.tensor(inverse_frequencies(CONFIG, 4, "float32"))
    assert torch.equal(found, _floats(RECORDED["frequencies"]))


def test_rows_are_vllms_at_every_recorded_position_up_to_2_to_the_20() -> None:
    """To the bit where torch is built alike; its cosine may differ by a last place elsewhere."""
    assert len(ROWS) > 200
    assert max(ROWS) > 2**20 - 2**17
    found = rope_rows(CONFIG, 4, torch.tensor(list(ROWS)))
    expected = torch.stack([_floats(row) for row in ROWS.values()])
    torch.testing.assert_close(found, expected, rtol=0, atol=2.0**-24)
