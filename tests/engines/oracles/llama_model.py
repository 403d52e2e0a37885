"""Write a GGUF of architecture deepseek4 with random weights: all layers, tiny elsewhere.

Layers, heads of keys and indexer keys are DeepSeek-V4's, so its caches have their real sizes.
    python llama_model.py LLAMA_CPP_SOURCE MODEL.gguf [LAYERS] [mtp]
"""

import sys
from pathlib import Path

HIDDEN, HEADS, VOCABULARY, EXPERTS, WIDTH, RANK, STREAMS = 64, 2, 512, 4, 32, 32, 4
KEY, INDEXER_KEY, INDEXER_HEADS = 512, 128, 2


def write(source: Path, path: Path, layers: int, drafts: int) -> None:  # noqa: C901
    """Write the file, with the gguf package that llama.cpp's source has."""
    sys.path.insert(0, str(source / "gguf-py"))
    import gguf  # type: ignore[import-not-found]
    import numpy as np

    names = gguf.MODEL_TENSOR
    out, random = gguf.GGUFWriter(str(path), "deepseek4"), np.random.default_rng(4)
    blocks = layers + drafts
    first = [128, 128] if layers == 61 else [0, 0]  # Pro's, Flash's
    ratios = [*first, *((4, 128)[place % 2] for place in range(layers - 2)), *[0] * drafts]

    def add(tensor: int, *shape: int, layer: int = -1, end: str = ".weight") -> None:
        name = gguf.TENSOR_NAMES[names(tensor)].format(bid=layer) + end
        one = "norm" in name
        data = np.ones(shape) if one else random.normal(0, 0.05, shape)
        out.add_tensor(name, data.astype(np.float32))

    about = {
        "block_count": blocks, "context_length": 2**20, "embedding_length": HIDDEN,
        "embedding_length_out": HIDDEN * STREAMS, "feed_forward_length": WIDTH,
        "head_count": HEADS, "head_count_kv": 1, "key_length": KEY, "value_length": KEY,
        "layer_norm_rms_eps": 1e-6, "rope_freq_base": 10_000.0, "rope_dimension_count": 64,
        "vocab_size": VOCABULARY, "q_lora_rank": RANK, "sliding_window": 128,
        "expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": WIDTH,
        "expert_shared_count": 1, "expert_weights_scale": 1.5, "expert_weights_norm": True,
        "expert_gating_func": gguf.ExpertGatingFuncType.SQRTSOFTPLUS,
        "swiglu_clamp_exp": [10.0] * blocks, "swiglu_clamp_shexp": [10.0] * blocks,
        "indexer_head_count": INDEXER_HEADS, "indexer_key_length": INDEXER_KEY,
        "indexer_top_k": 64, "attention_output_group_count": 2,
        "attention_output_lora_rank": 16, "attention_compress_ratios": ratios,
        "attention_compress_rope_freq_base": 160_000.0, "hyper_connection_count": STREAMS,
        "hyper_connection_sinkhorn_iterations": 2, "hyper_connection_epsilon": 1e-6,
        "hash_layer_count": 3, **({"nextn_predict_layers": drafts} if drafts else {}),
        "tokenizer_model": "gpt2", "tokenizer_pre": "default",
        "token_list": [f"t{number}" for number in range(VOCABULARY)],
        "token_types": [gguf.TokenType.NORMAL] * VOCABULARY, "token_merges": ["t 0"],
        "eos_token_id": 1, "bos_token_id": 0,
    }  # fmt: skip
    for name, value in about.items():
        getattr(out, f"add_{name}")(value)
    for tensor in (names.TOKEN_EMBD, names.OUTPUT):
        add(tensor, VOCABULARY, HIDDEN)
    add(names.OUTPUT_NORM, HIDDEN)
    add(names.HC_HEAD_FN, STREAMS, STREAMS * HIDDEN)
    add(names.HC_HEAD_BASE, STREAMS)
    add(names.HC_HEAD_SCALE, 1)
    mixed = (2 + STREAMS) * STREAMS
    for layer, ratio in enumerate(ratios):
        shapes = {
            "ATTN_NORM": (HIDDEN,), "ATTN_SINKS": (HEADS,), "ATTN_Q_A": (RANK, HIDDEN),
            "ATTN_Q_A_NORM": (RANK,), "ATTN_Q_B": (HEADS * KEY, RANK), "ATTN_KV": (KEY, HIDDEN),
            "ATTN_KV_NORM": (KEY,), "ATTN_OUT_A": (32, HEADS * KEY // 2),
            "ATTN_OUT_B": (HIDDEN, 32), "FFN_NORM": (HIDDEN,), "FFN_GATE_INP": (EXPERTS, HIDDEN),
            "FFN_GATE_EXP": (EXPERTS, WIDTH, HIDDEN), "FFN_UP_EXP": (EXPERTS, WIDTH, HIDDEN),
            "FFN_DOWN_EXP": (EXPERTS, HIDDEN, WIDTH), "FFN_GATE_SHEXP": (WIDTH, HIDDEN),
            "FFN_UP_SHEXP": (WIDTH, HIDDEN), "FFN_DOWN_SHEXP": (HIDDEN, WIDTH),
        }  # fmt: skip
        for part in ("ATTN", "FFN"):
            shapes |= {f"HC_{part}_FN": (mixed, STREAMS * HIDDEN), f"HC_{part}_BASE": (mixed,),
                       f"HC_{part}_SCALE": (3,)}  # fmt: skip
        for part, size in (("ATTN", KEY), ("INDEXER", INDEXER_KEY)):
            wide = size * (2 if ratio == 4 else 1)
            if ratio and (part == "ATTN" or ratio == 4):
                shapes |= {f"{part}_COMPRESSOR_WKV": (wide, HIDDEN),
                           f"{part}_COMPRESSOR_WGATE": (wide, HIDDEN),
                           f"{part}_COMPRESSOR_APE": (ratio, wide),
                           f"{part}_COMPRESSOR_NORM": (size,)}  # fmt: skip
        if ratio == 4:
            shapes |= {"INDEXER_PROJ": (INDEXER_HEADS, HIDDEN),
                       "INDEXER_ATTN_Q_B": (INDEXER_HEADS * INDEXER_KEY, RANK)}  # fmt: skip
        if layer >= layers:
            shapes |= {"NEXTN_EH_PROJ": (HIDDEN, 2 * HIDDEN), "NEXTN_ENORM": (HIDDEN,),
                       "NEXTN_HNORM": (HIDDEN,), "NEXTN_SHARED_HEAD_NORM": (HIDDEN,)}  # fmt: skip
        for name, shape in shapes.items():
            add(names[name], *shape, layer=layer)
        if layer < 3:
            name = gguf.TENSOR_NAMES[names.FFN_GATE_TID2EID].format(bid=layer) + ".weight"
            out.add_tensor(name, random.integers(0, EXPERTS, (VOCABULARY, 2), dtype=np.int32))
        else:
            add(names.FFN_EXP_PROBS_B, EXPERTS, layer=layer, end=".bias")
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    given = sys.argv[3:]
    layers = next((int(each) for each in given if each.isdecimal()), 43)
    write(Path(sys.argv[1]), Path(sys.argv[2]), layers, int("mtp" in given))
