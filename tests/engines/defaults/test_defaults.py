"""What an engine takes by default is what its own functions answer.

``recorded.jsonl`` holds the answers of ``ask.py``: vLLM 0.20.0, 0.22.1, 0.25.0 to 0.28.0, 0.30.0
and 0.33.0 (``EngineArgs.get_batch_defaults``, ``VllmConfig.max_concurrent_batches``), SGLang
0.5.12, 0.5.14, 0.5.15 and 0.5.19 to 0.5.23 (``handle_gpu_memory_settings``), eight GPUs each, six
layouts as (TP, DP, PP). SGLang's TP is ours times DP.
"""

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from dsv4kv.budget.gpus import load_gpu
from dsv4kv.engines.contract import Defaults, Machine
from dsv4kv.engines.names import ENGINES, find_engine

RECORDED = Path(__file__).parent / "recorded.jsonl"


def recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    for line in RECORDED.read_text("utf-8").splitlines():
        row = json.loads(line)
        for version in row["versions"]:
            yield f"{row['engine']}:{version}", row


def defaults(engine: str, gpu: str, layout: list[int], **given: Any) -> Defaults:
    known = load_gpu(gpu)
    tp, dp, pp = layout
    machine = Machine(gpu, known.driver_bytes, tp, dp, pp)
    return find_engine(engine).defaults(machine, given)


def test_every_recorded_default_is_met() -> None:
    checked = 0
    for engine, row in recorded():
        found = defaults(engine, row["gpu"], row["layout"])
        for name in ("step_tokens", "request_limit", "memory_fraction", "overlap"):
            told = row.get(name)
            if told is None or (name == "overlap" and found[name].value == 1):
                continue  # up to 0.25 vLLM counts one step, however many overlap
            value = Fraction(str(told)) if name == "memory_fraction" else told
            assert found[name].value == value, (engine, row)
            checked += 1
    assert checked > 1500


def test_every_version_with_rules_has_recorded_defaults() -> None:
    versions = {find_engine(engine).name for engine, _ in recorded()}
    patch = {"vllm:0.26.1"}  # known by its start-up logs; differs from 0.26 in steps counted alone
    assert versions | patch >= {name for name in ENGINES if ":" in name}
