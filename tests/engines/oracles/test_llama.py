"""Sizes and hits of llama.cpp 0c1e57098, as ``llama_asked.py`` recorded them."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.budget.answer import answer
from dsv4kv.budget.inputs import read_inputs
from dsv4kv.budget.launch import read_command
from dsv4kv.core.slots import SlotCache
from dsv4kv.engines.contract import MIB
from dsv4kv.engines.names import find_rule
from dsv4kv.model.presets import load_model
from dsv4kv.replay.rules import Pool, open_cache
from dsv4kv.traces.paths import collect_paths
from dsv4kv.traces.request import Request

RECORDED = Path(__file__).with_name("llama_0.3.36.jsonl")
ROWS = [json.loads(line) for line in RECORDED.read_text("utf-8").splitlines()]
STARTS = [row for row in ROWS if "buffers_mib" in row]
ASKED = [row for row in ROWS if "hits" in row]


@pytest.mark.parametrize("row", STARTS, ids=lambda row: " ".join((row["model"], *row["flags"])))
def test_buffers_have_the_sizes_that_it_prints(row: dict[str, Any]) -> None:
    model = "Pro" if row["model"] == "pro" else "Flash"
    texts = read_command(f"llama-server -m V4-{model}.gguf {' '.join(row['flags'])}").texts
    found = answer(read_inputs({**texts, "gpu": "mi355x", "gpus": "1", "weights": "100GiB"}))
    held, printed = sum(cost.shared_bytes for cost in found.costs), row["buffers_mib"]
    assert held / MIB == pytest.approx(sum(printed), abs=0.006 * len(printed))  # rounded each


@pytest.mark.parametrize("row", ASKED, ids=lambda row: " ".join(row["flags"]))
def test_prompts_hit_what_it_says_they_do(row: dict[str, Any]) -> None:
    given = dict(zip(row["flags"][::2], row["flags"][1::2], strict=True))
    fresh, made = count(), list[list[int]]()
    for of, common, new in row["prompts"]:
        made.append((made[of][:common] if of >= 0 else []) + [next(fresh) for _ in range(new)])
    table = collect_paths([Request(0.0, len(ids), 1, tuple(ids), 1) for ids in made])
    slots, tokens = int(given.get("-np", 0)), 4 * int(given["-c"])
    pool = Pool(table, tokens, 1, load_model("v4-flash"), int(given["-ub"]), slots=slots)
    cache = open_cache(find_rule("llama.cpp"), pool)
    assert isinstance(cache, SlotCache)
    hits = []
    for number, ids in enumerate(made):
        hit = cache.serve(number, len(ids))
        assert hit
        hits.append(cache.computed_from(hit))
    assert hits == row["hits"]
