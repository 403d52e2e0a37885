"""Host memory beside the GPUs: pools, what they keep, and what an engine refuses."""

import pytest

from dsv4kv.budget.answer import Answer, answer
from dsv4kv.budget.launch import read_command
from dsv4kv.errors import ConfigError
from tests.budget.questions import GIB, ask

FLASH = {"model": "v4-flash", "gpu": "h200", "gpus": "8", "context": "128K"}
OFFLOADED = FLASH | {"engine": "vllm", "host_tier": "native", "host_size": "100GiB"}
LMCACHE = OFFLOADED | {"host_tier": "lmcache"}
HICACHE = FLASH | {"engine": "sglang", "host_tier": "hicache", "host_ratio": "2"}


def found(**texts: str) -> Answer:
    return answer(ask(**texts))


def test_the_command_of_a_server_asks_for_its_host_pools() -> None:
    reading = read_command(
        "sglang serve deepseek-ai/DeepSeek-V4-Flash --tp 8 --enable-hierarchical-cache "
        "--hicache-ratio 2 --hicache-write-policy write_through --hicache-mem-layout layer_first "
        "--hicache-storage-backend file"
    )
    assert not reading.uncounted
    assert not reading.unknown
    texts = {name.replace("-", "_"): text for name, text in reading.texts.items()}
    host = found(**(texts | {"gpu": "h200", "context": "128K"})).host
    own = found(**HICACHE).host
    assert host is not None
    assert own is not None
    assert host.pools == own.pools
    assert host.gpu_bytes == 0 < own.gpu_bytes  # layer_first needs no staging
    assert "storage backend file" in " ".join(host.notes)


@pytest.mark.parametrize(
    ("tier", "texts", "sentence"),
    [
        (HICACHE, {"host_size": "1GB", "host_ratio": ""}, "does not support --hicache-size"),
        (HICACHE, {"host_ratio": ""}, "auto-sizing does not support DeepSeekV4TokenToKVPool"),
        (HICACHE, {"prefix_cache": "off"}, "--disable-radix-cache"),
        (HICACHE, {"block_tokens": "128"}, "pages of 256 tokens"),
        (HICACHE, {"host_layout": "page_head"}, "choose one"),
        (HICACHE, {"host_ratio": "1e999999999"}, "not a number"),
        (HICACHE, {"engine": "sglang:0.5.20"}, "as sglang:0.5.23 sizes it"),
        (HICACHE, {"engine": "vllm"}, "has none"),
        (OFFLOADED, {"host_size": ""}, "needs a size"),
        (OFFLOADED, {"retention": "100"}, "a multiple of its block, 256"),
        (OFFLOADED, {"engine": "vllm:0.26"}, "as vllm:0.33 sizes it"),
        (LMCACHE, {"model": "v4.1-flash", "gpu": "b200"}, "not known"),
        (LMCACHE, {"host_tier": "lmcache-local"}, "does not start V4"),
    ],
)
def test_what_the_engine_refuses_is_refused_in_its_words(
    tier: dict[str, str], texts: dict[str, str], sentence: str
) -> None:
    asked = {name: text for name, text in (tier | texts).items() if text}
    with pytest.raises(ConfigError, match=sentence):
        found(**asked)


def test_host_pools_beyond_a_nodes_memory_are_refused_as_the_engine_refuses_them() -> None:
    """A rank's share of what is free, 10 GiB kept; the first pool that is too much is named."""
    whole = found(**HICACHE).host
    assert whole is not None
    enough = whole.node_bytes + 10 * GIB
    assert found(**HICACHE, host_memory=f"{enough}").fits
    short = found(**HICACHE, host_memory=f"{enough - 8}")
    assert not short.fits
    assert short.refused
    assert short.host is not None
    assert "its host pool deepseek_v4_c128 takes" in short.host.refusal


def test_vllm_with_too_little_memory_is_told() -> None:
    short = found(**OFFLOADED, host_memory="64GiB")
    assert not short.fits
    assert short.host is not None
    assert "of a node's memory, and" in short.host.refusal


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 -dcp 8", "DCP with hybrid KV cache"),
        ("vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 -dcp 8", "v3.2 with it is not sized"),
        (
            """vllm serve deepseek-ai/DeepSeek-V4-Flash --kv-transfer-config \\
            '{"kv_connector": "HiSparseConnector"}'""",
            "HiSparse does not support DeepSeek V4",
        ),
        ("sglang serve deepseek-ai/DeepSeek-V4-Flash --tp 8 --dcp-size 4", "is not sized"),
        ("sglang serve deepseek-ai/DeepSeek-V4-Flash --tp 8 --enable-prefill-cp", "not sized"),
        ("sglang serve deepseek-ai/DeepSeek-V4.1-Flash --tp 8 --enable-hisparse", "HiSparse yet"),
        ("sglang serve deepseek-ai/DeepSeek-V4-Flash --enable-hisparse", "--disable-radix-cache"),
        ("sglang serve deepseek-ai/DeepSeek-V4-Flash --enable-unified-memory", "unified memory"),
    ],
)
def test_what_is_not_sized_is_refused_by_name_with_the_engines_reason(
    command: str, sentence: str
) -> None:
    texts = {key.replace("-", "_"): text for key, text in read_command(command).texts.items()}
    with pytest.raises(ConfigError, match=sentence):
        found(**(texts | {"gpu": "b200", "context": "64K"}))
