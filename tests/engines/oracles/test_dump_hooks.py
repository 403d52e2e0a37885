"""What the hooks of docs/inspect.md take hold of is in the released packages."""

import os
from pathlib import Path

import pytest

NAMED = {
    "vllm/vllm/v1/worker/gpu_model_runner.py": ("self.kv_caches", "self.requests: dict[str"),
    "vllm/vllm/v1/worker/gpu_input_batch.py": ("block_ids: tuple[list[int]",),
    "vllm/vllm/v1/worker/gpu_worker.py": ("self.model_runner",),
    "sglang/sglang/srt/managers/scheduler.py": ("self.token_to_kv_pool_allocator.get_kvcache()",),
    "sglang/sglang/srt/mem_cache/deepseek_v4_memory_pool.py": (
        "self.layer_mapping:",
        "self.kv_pools",
        "self.index_pools",
        "self.swa_kv_pool",
        "self.kv_buffer",
        "self.index_k_with_scale_buffer",
        "class DeepSeekV4LayerItem(NamedTuple)",
    ),
}


@pytest.mark.parametrize("source", NAMED)
def test_a_hook_takes_hold_of_what_there_is(source: str) -> None:
    folder = os.environ.get("DSV4KV_ENGINES")
    if not folder:
        pytest.skip("needs the engines' packages: make engines")
    text = (Path(folder) / source).read_text("utf-8")
    assert [name for name in NAMED[source] if name not in text] == []
