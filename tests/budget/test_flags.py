"""The engines' flags: each means what it does there, and another engine's gets a sentence."""

import pytest

from dsv4kv.budget.inputs import merge, read_flag, read_inputs, wrong_engine
from dsv4kv.engines.flags import Texts
from dsv4kv.engines.names import FAMILIES, find_flag
from dsv4kv.errors import ConfigError


@pytest.mark.parametrize(
    ("family", "spelling", "value", "texts"),
    [
        ("vllm", "--max-model-len", "128k", {"context": "128000"}),
        ("vllm", "--max-model-len", "128K", {"context": "131072"}),
        ("vllm", "--max_model_len", "auto", {}),
        ("vllm", "-tp", "8", {"tp": "8"}),
        ("vllm", "--max-num-batched-tokens", "8_192", {"step-tokens": "8192"}),
        ("vllm", "--kv-cache-memory-bytes", "5.6g", {"kv-memory": "5600000000"}),
        ("vllm", "--kv-cache-dtype", "fp8", {"cache-dtype": "fp8"}),
        ("sglang", "--kv-cache-dtype", "bf16", {"cache-dtype": "bfloat16"}),
        ("trtllm", "--kv_cache_dtype", "bfloat16",
         {"main-format": "bf16", "window-format": "bf16"}),
        ("vllm", "--attention-config", '{"backend": "FLASHINFER_MLA_SPARSE_DSV4"}',
         {"attention-backend": "FLASHINFER_MLA_SPARSE_DSV4"}),
        ("sglang", "--dsv4-attn-backend", "trtllm", {"attention-backend": "trtllm"}),
        ("sglang", "--disaggregation-mode", "null", {}),
        ("sglang", "--disaggregation-mode", "decode", {"role": "decode"}),
        ("sglang", "--enable-encoder-swa-bounded-replay", "", {"window-slots": "own"}),
        ("sglang", "--no-enable-decoder-swa-bounded-replay", "", {"bounded-replay": "off"}),
        ("vllm", "--no-swa-bounded-replay", "", {"bounded-replay": "off"}),
        ("vllm", "--speculative-config", '{"method":"mtp","num_speculative_tokens":3}',
         {"draft-layers": "1", "draft-tokens": "3"}),
        ("vllm", "--speculative-config", '{"method": "dspark"}', {"draft-layers": "3"}),
        ("vllm", "--attention-config", '{"use_fp4_indexer_cache": true}',
         {"indexer-format": "mxfp4"}),
        ("vllm", "--no-async-scheduling", "", {"overlap": "1"}),
        ("vllm", "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "256", {"logits-limit": "256MiB"}),
        ("vllm", "--kv-offloading-size", "100",
         {"host-tier": "native", "host-size": "107374182400"}),
        ("vllm", "--kv-offloading-backend", "lmcache", {}),  # nothing without a size
        (
            "vllm",
            "--kv-transfer-config",
            """{"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": 1e10}}""",
            {"host-tier": "simple", "host-size": "10000000000"},
        ),
        (
            "vllm",
            "--kv-transfer-config",
            """{"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [
            {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}, {"kv_connector":
            "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 4096}}]}}""",
            {"role": "prefill", "host-tier": "native", "host-size": "4096"},
        ),
        ("vllm", "--prefix-cache-retention-interval", "None", {"retention": "dense"}),
        ("sglang", "--hicache-size", "30", {"host-size": "30GB"}),
        ("sglang", "--hicache-io-backend", "direct", {"host-layout": "page_first_direct"}),
        ("sglang", "--chunked-prefill-size", "-1", {}),
        ("sglang", "--speculative-algo", "EAGLE", {"draft-layers": "1", "draft-tokens": "4"}),
        ("sglang", "--speculative-dspark-block-size", "5", {"draft-tokens": "6"}),
        ("sglang", "--disable-radix-cache", "", {"prefix-cache": "off"}),
        ("sglang", "SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS", "0",
         {"window-slots": "kept"}),
        ("sglang", "SGLANG_DSV4_COMPRESS_STATE_DTYPE", "bfloat16", {"state": "bf16"}),
        ("trtllm", "--max_num_tokens", "8192", {"step-tokens": "8192"}),
    ],
)  # fmt: skip
def test_a_word_means_what_it_does_there(
    family: str, spelling: str, value: str, texts: Texts
) -> None:
    assert merge(family, [read_flag(family, spelling, value)]) == texts
    assert read_inputs(texts)


@pytest.mark.parametrize("family", FAMILIES)
def test_variables_of_a_launch_line_mean_what_they_are_written_for(family: str) -> None:
    for meant, text in FAMILIES[family].launch.written.items():
        variable, given, value = text.partition("=")
        if given and variable.isupper():
            name, _, asked = meant.partition("=")
            assert merge(family, [read_flag(family, variable, value)]) == {name: asked}


@pytest.mark.parametrize(
    ("family", "spelling", "value", "sentence"),
    [
        ("vllm", "--max-model-len", "long", "--max-model-len: 'long' is not a number: write 8192"),
        ("trtllm", "--kv_cache_dtype", "int4", "--kv_cache_dtype: 'int4' is no cache dtype"),
        ("vllm", "--speculative-config", "{mtp", "--speculative-config: '{mtp' is not a JSON"),
        ("vllm", "--speculative-config", "[" * 2000, "is not a JSON object"),
        ("vllm", "--speculative-config", '{"method":"ngram"}', "drafts by 'ngram' are not"),
        ("sglang", "SGLANG_DSV4_COMPRESS_STATE_DTYPE", "online", "'online' is not a state of SG"),
    ],
)
def test_a_value_that_is_none_is_a_sentence_with_its_word(
    family: str, spelling: str, value: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_flag(family, spelling, value)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("family", "spelling", "sentence"),
    [
        ("sglang", "--max-model-len", "is a flag of vllm: sglang calls it --context-length."),
        ("vllm", "--chunked-prefill-size", "of sglang: vllm calls it --max-num-batched-tokens."),
        ("vllm", "--enable-hisparse", "is a flag of sglang: vllm has no such flag."),
        ("dsv4kv", "--max-num-seqs", "vllm: add --engine vllm, or give --request-limit."),
    ],
)
def test_a_word_of_another_engine_names_the_right_one(
    family: str, spelling: str, sentence: str
) -> None:
    assert find_flag(family, spelling) is None
    assert str(wrong_engine(family, spelling)).endswith(sentence)


def test_sglangs_ranks_are_those_of_all_replicas_of_its_attention() -> None:
    def texts(*flags: tuple[str, str]) -> Texts:
        return merge("sglang", [read_flag("sglang", *flag) for flag in flags])

    eight = (("--tp", "8"), ("--dp", "8"))
    assert texts(*eight, ("--enable-dp-attention", "")) == {"tp": "1", "dp": "8"}
    assert texts(*eight) == {"tp": "8", "dp": "8", "dp-attention": "off", "ep": "8"}
    assert texts(("--tp", "8"), ("--dp", "1")) == {"tp": "8", "dp": "1"}
    with pytest.raises(ConfigError, match="--dp-size 3 does not divide --tp-size 8"):
        texts(("--tp", "8"), ("--dp", "3"), ("--enable-dp-attention", ""))
