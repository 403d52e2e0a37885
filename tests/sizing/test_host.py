"""Host memory beside the GPUs: pools, what they keep, and what an engine refuses."""

import json

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.errors import ConfigError
from dsv4kv.sizing.answer import Answer, answer
from dsv4kv.sizing.launch import read_command
from tests.sizing.questions import GIB, ask

FLASH = {"model": "v4-flash", "gpu": "h200", "gpus": "8", "context": "128K"}
HICACHE = FLASH | {"engine": "sglang", "host_tier": "hicache", "host_ratio": "2"}


def found(**texts: str) -> Answer:
    return answer(ask(**texts))


def test_hicache_has_a_page_for_every_page_of_the_gpu_so_many_times() -> None:
    """Bytes of a page by family: Flash, fp8 keys, no drafts (SGLang 0.5.23)."""
    deployment = found(**HICACHE)
    assert deployment.host is not None
    assert deployment.capacity is not None
    pools = {pool.name.removeprefix("deepseek_v4_"): pool for pool in deployment.host.pools}
    assert {name: pool.page_bytes for name, pool in pools.items()} == {
        "kv": 0,
        "swa": 6_439_680,
        "c4": 786_240,
        "c4_indexer": 177_408,
        "c4_state": 1_376_256,
        "c4_indexer_state": 344_064,
        "c128": 34_560,
    }
    full = deployment.capacity.units // 256
    assert pools["c4"].pages == pools["c128"].pages == pools["kv"].pages == 2 * full
    assert pools["swa"].pages == pools["c4_state"].pages < pools["c4"].pages
    assert deployment.host.keeps["tokens of context"] == 2 * deployment.capacity.units


def test_every_rank_of_a_node_has_its_own_copy() -> None:
    host = found(**HICACHE).host
    assert host is not None
    assert host.copies == 8
    assert host.node_bytes == 8 * host.holder_bytes


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
    ("texts", "sentence"),
    [
        ({"host_size": "100GB", "host_ratio": ""}, "does not support --hicache-size"),
        ({"host_ratio": ""}, "auto-sizing does not support DeepSeekV4TokenToKVPool"),
        ({"prefix_cache": "off"}, "--disable-radix-cache"),
        ({"block_tokens": "128"}, "pages of 256 tokens"),
        ({"host_layout": "page_head"}, "choose one"),
        ({"engine": "sglang:0.5.20"}, "as sglang:0.5.23 sizes it"),
        ({"engine": "vllm"}, "has none"),
        ({"engine": "trtllm", "host_ratio": ""}, "has none"),
    ],
)
def test_what_the_engine_refuses_is_refused_in_its_words(
    texts: dict[str, str], sentence: str
) -> None:
    asked = {name: text for name, text in (HICACHE | texts).items() if text}
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


def test_v32_without_a_ratio_has_twice_its_tokens_or_what_the_node_has_left() -> None:
    flat = {"model": "v3.2", "gpu": "h200", "gpus": "16", "engine": "sglang", "context": "128K"}
    twice = found(**flat, host_tier="hicache")
    assert twice.host is not None
    assert twice.capacity is not None
    kept = twice.host.keeps["tokens of context"]
    assert 2 * twice.capacity.units <= kept <= 2 * twice.capacity.units + 64
    less = found(**flat, host_tier="hicache", host_memory="300GiB").host
    assert less is not None
    assert not less.refusal
    assert less.node_bytes < 0.8 * 290 * GIB


def test_encoder_replay_keeps_no_windows_on_the_host() -> None:
    v41 = {"model": "v4.1-flash", "gpu": "b200", "gpus": "8", "engine": "sglang"}
    asked = v41 | {"context": "64K", "host_tier": "hicache", "host_ratio": "1.5"}
    kept, replayed = found(**asked).host, found(**asked, window_slots="own").host
    assert kept is not None
    assert replayed is not None
    assert "swa" in {pool.name for pool in kept.pools}
    assert "swa" not in {pool.name for pool in replayed.pools}
    assert list(replayed.keeps) == ["tokens of context"]


OFFLOADED = FLASH | {"engine": "vllm", "host_tier": "native", "host_size": "100GiB"}


def test_tensor_parallel_ranks_of_one_node_share_one_copy_in_vllm() -> None:
    """A chunk is a block of the pool, whole pages of 4,096 B, of all copies."""
    shared, apart = found(**OFFLOADED).host, found(**OFFLOADED, pp="2", tp="4").host
    assert shared is not None
    assert apart is not None
    (chunk,) = shared.pools
    assert (chunk.page_bytes, chunk.pages) == (1_003_520, 106_997)
    assert shared.copies == 1
    assert "one copy serves all its ranks" in shared.notes[0]
    assert "8 ranks have a copy each" in apart.notes[0]
    assert apart.pools[0].pages < chunk.pages / 4


def test_a_prompt_takes_fewer_chunks_where_windows_are_kept_at_its_end_alone() -> None:
    """512 blocks of the context and 22 of windows and states; 23 a block where all are kept."""
    host = found(**OFFLOADED).host
    assert host is not None
    assert host.keeps["prompts of 131,072 tokens at 534 chunks (windows at the end alone)"] == 200
    assert host.keeps["prompts of 131,072 tokens at 11,776 chunks (windows at every block)"] == 9
    every = found(**OFFLOADED, retention="4096").host
    assert every is not None
    assert any("1,238 chunks (windows every 4,096 tokens)" in words for words in every.keeps)


def test_v41_stores_no_windows_and_a_copy_for_every_rank() -> None:
    """Its windows are computed again, and its ring of states is not known to be alike."""
    v41 = {"model": "v4.1-flash", "gpu": "b200"}
    host = found(**(OFFLOADED | v41)).host
    assert host is not None
    assert "8 ranks have a copy each" in host.notes[0]
    assert "prompts of 131,072 tokens at 1,024 chunks" in host.keeps


@pytest.mark.parametrize(
    ("words", "name", "pages"),
    [
        ("--kv-offloading-size 100", "OffloadingConnector", 106_997),
        ("--kv-offloading-size 12.5", "OffloadingConnector", 13_374),
        (
            """--kv-transfer-config '{"kv_connector": "SimpleCPUOffloadConnector"}'""",
            "SimpleCPUOffloadConnector",
            1_071,  # 8 GiB of eight ranks
        ),
    ],
)
def test_the_flags_of_vllm_ask_for_its_host_memory(words: str, name: str, pages: int) -> None:
    command = f"vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --max-model-len 128K {words}"
    texts = {key.replace("-", "_"): text for key, text in read_command(command).texts.items()}
    host = found(**(texts | {"gpu": "h200"})).host
    assert host is not None
    assert (host.name, host.pools[0].pages) == (name, pages)


LMCACHE = FLASH | {"engine": "vllm", "host_tier": "lmcache", "host_size": "100GiB"}


@pytest.mark.parametrize(
    ("chunk", "per_token"), [("256", 64_096), ("4096", 7_615), ("32K", 4_321)]
)
def test_lmcache_keeps_a_window_with_every_chunk(chunk: str, per_token: int) -> None:
    """3,850.25 B a token and 15,420,416 B a chunk, in whole pages of 4,096 B."""
    host = found(**LMCACHE, host_chunk=chunk).host
    assert host is not None
    (pool,) = host.pools
    tokens = host.keeps["tokens of context"] // pool.pages
    assert tokens == {"256": 256, "4096": 4096, "32K": 32_768}[chunk]
    assert pool.page_bytes == -(-(tokens * 15_401 // 4 + 15_420_416) // 4096) * 4096
    assert round(pool.page_bytes / tokens) == per_token


def test_lmcaches_server_has_a_size_that_no_flag_of_vllm_gives() -> None:
    reading = read_command(
        "LMCACHE_CHUNK_SIZE=1024 vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 "
        "--kv-offloading-size 10 --kv-offloading-backend lmcache"
    )
    texts = {name.replace("-", "_"): text for name, text in reading.texts.items()}
    host = found(**(texts | {"gpu": "h200", "context": "128K"})).host
    assert host is not None
    assert host.pools[0].name == "chunks of 1,024 tokens"
    assert host.pools[0].pages == 0
    assert "--l1-size-gb" in host.notes[-1]


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"host_chunk": "100"}, "a multiple of 256"),
        ({"model": "v4.1-flash", "gpu": "b200"}, "not known"),
        ({"host_tier": "lmcache-local"}, "does not start V4"),
        ({"engine": "vllm:0.28"}, "as vllm:0.33 sizes it"),
    ],
)
def test_what_lmcache_cannot_keep_is_told(texts: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        found(**(LMCACHE | texts))


def test_lmcache_in_the_process_keeps_v32_in_5_gib_unless_told() -> None:
    command = (
        "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 --max-model-len 64K --kv-transfer-config "
        """'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'"""
    )
    own = {key.replace("-", "_"): text for key, text in read_command(command).texts.items()}
    more = read_command(f"LMCACHE_MAX_LOCAL_CPU_SIZE=20 {command}").texts["host-size"]
    host, larger = found(**own, gpu="h200").host, found(**own, gpu="h200", host_size=more).host
    assert host is not None
    assert larger is not None
    assert host.node_bytes <= 5 * GIB < larger.node_bytes <= 20 * GIB


def test_vllm_without_a_size_or_with_too_little_memory_is_told() -> None:
    with pytest.raises(ConfigError, match="needs a size"):
        found(**(FLASH | {"engine": "vllm", "host_tier": "native"}))
    short = found(**OFFLOADED, host_memory="64GiB")
    assert not short.fits
    assert short.host is not None
    assert "of a node's memory, of which" in short.host.refusal


def test_the_answer_prints_host_memory_and_the_document_has_it() -> None:
    words = ["--gpu", "h200", "--gpus", "8", "--engine", "sglang", "--context", "128K"]
    words += ["--enable-hierarchical-cache", "--hicache-ratio", "2"]
    printed = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["budget", *words, "--verbose"])
    assert printed.exit_code == 0
    assert "Host memory: HiCache" in printed.output
    assert "per node" in printed.output
    document = json.loads(CliRunner().invoke(app, ["budget", *words, "--json"]).output)
    host = document["host"]
    assert host["node_bytes"] == host["copies"] * host["holder_bytes"]
    assert host["holder_bytes"] == sum(pool["total_bytes"] for pool in host["pools"])
    assert document["inputs"]["host_tier"] == "hicache"


@pytest.mark.parametrize(
    ("engine", "tokens", "sent"),
    [
        ("vllm", 8192, 50_677_056),
        ("vllm", 131_072, 531_752_256),
        ("sglang", 8192, 40_102_656),
        ("sglang", 131_072, 519_242_496),
        ("sglang", 131_073, 538_886_464),  # a page more, and a page of pending rows of HCA
    ],
)
def test_a_prompt_sends_its_pages_and_its_last_window_to_the_decode_side(
    engine: str, tokens: int, sent: int
) -> None:
    asked = FLASH | {"engine": engine, "context": f"{tokens}"}
    assert found(**asked, role="prefill").sent_bytes == sent
    assert found(**asked, role="decode").sent_bytes == sent
    assert found(**asked).sent_bytes is None


def test_sglangs_decode_side_keeps_windows_for_running_requests_alone() -> None:
    """No chunk in flight and no tails of prefixes; of few requests, twice as many are received."""
    both = FLASH | {"engine": "sglang", "request_limit": "32"}
    whole, decode = found(**both), found(**both, role="decode")
    assert decode.use.shared < whole.use.shared
    assert decode.scenario.settings.extra_slots == 64
    assert found(**both, role="decode", extra_slots="0").use.shared < decode.use.shared
    many = found(**(both | {"request_limit": "64"}), role="decode")
    assert many.scenario.settings.extra_slots == 0


def test_sglangs_prefill_side_keeps_no_memory_for_decode_graphs() -> None:
    asked = FLASH | {"engine": "sglang", "tp": "1", "dp": "8"}
    prefill = found(**asked, role="prefill").scenario.settings.memory_fraction
    assert prefill > found(**asked).scenario.settings.memory_fraction


def test_hicache_is_refused_on_a_decode_side_without_prefixes() -> None:
    with pytest.raises(ConfigError, match="--disable-radix-cache"):
        found(**HICACHE, role="decode")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 -dcp 8", "DCP with hybrid KV cache"),
        ("vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8 -pcp 2", "PCP only supports full"),
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
        ("sglang serve deepseek-ai/DeepSeek-V3.2 --tp 8 --enable-hisparse", "is not sized"),
        ("sglang serve deepseek-ai/DeepSeek-V4-Flash --enable-unified-memory", "unified memory"),
    ],
)
def test_what_is_not_sized_is_refused_by_name_with_the_engines_reason(
    command: str, sentence: str
) -> None:
    texts = {key.replace("-", "_"): text for key, text in read_command(command).texts.items()}
    with pytest.raises(ConfigError, match=sentence):
        found(**(texts | {"gpu": "b200", "context": "64K"}))


def test_a_context_on_one_rank_and_unified_kv_on_nvidia_change_nothing() -> None:
    command = "SGLANG_HACK_FLASHMLA_BACKEND=unified_kv_triton sglang serve "
    command += "deepseek-ai/DeepSeek-V4-Flash --tp 8 --dcp-size 1 --attn-cp-size 1"
    texts = {key.replace("-", "_"): text for key, text in read_command(command).texts.items()}
    plain = FLASH | {"engine": "sglang"}
    assert found(**(texts | {"gpu": "h200", "context": "128K"})).use == found(**plain).use
    with pytest.raises(ConfigError, match="unified KV"):
        found(**(texts | {"gpu": "mi300x", "context": "128K"}))


def test_hisparse_keeps_all_of_csas_entries_on_the_host_and_a_part_on_the_gpu() -> None:
    """A full token takes 37,440 / 256 · 21 B of them; a fourth of it stays with a ratio of 4."""
    whole = found(**FLASH, engine="sglang", prefix_cache="off")
    command = (
        "sglang serve deepseek-ai/DeepSeek-V4-Flash --tp 8 --disable-radix-cache "
        """--enable-hisparse --hisparse-config '{"host_to_device_ratio": 4}'"""
    )
    texts = {key.replace("-", "_"): text for key, text in read_command(command).texts.items()}
    sparse = found(**(texts | {"gpu": "h200", "context": "128K"}))
    assert sparse.host is not None
    assert sparse.capacity is not None
    assert whole.capacity is not None
    saved = whole.capacity.unit_bytes - sparse.capacity.unit_bytes
    assert saved == pytest.approx(37_440 / 256 * 21 * 3 / 4)
    (pool,) = sparse.host.pools
    assert (pool.name, pool.page_bytes) == ("dsv4_hisparse_c4", 786_240)
    assert pool.pages == -(-sparse.capacity.units // 256)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (OFFLOADED | {"retention": "100"}, "a multiple of its block, 256"),
        (HICACHE | {"host_ratio": "1e999999999"}, "not a number"),
        (OFFLOADED | {"engine": "vllm:0.26"}, "as vllm:0.33 sizes it"),
        (
            FLASH | {"engine": "sglang:0.5.19", "hisparse": "on", "prefix_cache": "off"},
            "HiSparse is sized as sglang:0.5.23",
        ),
    ],
)
def test_odd_host_memory_is_told_in_a_sentence(texts: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        found(**texts)


def test_a_hosts_memory_that_nothing_keeps_is_warned_of() -> None:
    words = ["--gpus", "8", "--engine", "sglang", "--context", "128K", "--hicache-ratio", "2"]
    printed = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["budget", *words])
    assert printed.exit_code == 0
    assert "--host-ratio and --host-size need a --host-tier" in printed.output
