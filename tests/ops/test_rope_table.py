"""The table of cosines and sines against vLLM's own, made on a CPU and kept as hex."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dsv4kv.model.config import inverse_frequencies
from dsv4kv.model.presets import load_model
from dsv4kv.ops.storage import make_rope, rope_rows

CONFIG = load_model("v4-flash")
RECORDED = json.loads((Path(__file__).parent / "data/rope_vllm_0_33.json").read_text())
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


def test_a_table_has_the_rows_of_the_groups_first_positions() -> None:
    table = make_rope(CONFIG, 128, 1000, "float32")
    assert torch.equal(table, rope_rows(CONFIG, 128, torch.arange(0, 7 * 128, 128)))
