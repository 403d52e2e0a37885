"""Names of kernels of serving engines, as profiles have them, by engine and by what they do.

vLLM 0.33, SGLang 0.5.23, FlashInfer 0.7, FlashMLA, DeepGEMM, and TensorRT-LLM, read in their
sources and in the symbols of their packages.
"""

ENGINES: dict[str, dict[str, tuple[str, ...]]] = {
    "DeepGEMM": {"indexer": ("sm100_paged_mqa_logits_metadata", "smxx_clean_logits")},
    "FlashAttention": {
        "attention": (
            "flash_fwd_splitkv_combine_kernel",
            "prepare_varlen_num_blocks_kernel",
            "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90INS1_24Coll",
            "_ZN7cutlass13device_kernelIN5flash19FlashAttnFwdCombineIN4cute5tupleIJNS3_1CILi16E",
            "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object",
        )
    },
    "FlashInfer": {
        "indexer": ("FilteredTopKUnifiedKernel", "RadixTopKKernel_Unified"),
        "insert": (
            "NVFP4QuantizeAppendPagedKVMlaCacheKernel",
            "RopeQuantizeAppendPagedKVCacheKernel",
            "QuantizeAppendWinnerKernel",
            "kernel_cake_fused_qk_rope_fp8_append_31cb02d023f2ccb40a0b",
        ),
        "attention": (
            "BatchDecodeWithPagedKVCacheKernelMLA",
            "BatchMLAPageAttentionHopperKernel",
            "FP8PrefillWithKVCacheKernel",
            "BatchPODWithKVCacheTensorKernel",
            "MergeStateInPlaceKernel",
            "PersistentVariableLengthAttentionSumKernel",
            "kernel_cake_dsv4_nvfp4_0ccb0108d760a7cd93bc",
        ),
    },
    "FlashMLA": {
        "attention": (
            "sparse_attn_fwd_for_small_topk_kernel",
            "void sm100::prefill::fused_norm_rope_attn_rope_cast_fwd::core_attn::fwd_kernel<K>(P)",
            "_ZN7cutlass13device_kernelINS_4fmha6kernel36Sm100FmhaFwdKernelTmaWarpspecializedIN4",
        )
    },
    "SGLang": {
        "indexer": (
            "fused_norm_rope_indexer_fp4",
            "fused_q_indexer_rope_hadamard_quant",
            "fused_k_indexer_norm_rope_store",
            "topk_main_kernel",
            "topk_plan_cluster",
            "topk_split_select",
            "fast_topk_kernel",
            "transform_index_page_table_decode_kernel",
            "paged_mqa_metadata_tiny_kernel",
            "schedule_from_tiles_kernel",
            "_get_s_triton_kernel",
            "_triton_fused_store_indexer_kernel",
            "index_k_kernel",
            "_index_q_rope_pack_kernel",
            "_store_fp4_index_k_cache_kernel",
            "_fp4_index_logits_paged_kernel",
            "_finish_paged_indexer_topk_kernel",
            "_quantize_fp4_indexer_kernel",
            "fast_hadamard_transform_kernel",
        ),
        "compress": (
            "flash_c2_decode_kernel",
            "_c2_decode_pool_kernel",
            "plan_compress_decode_kernel",
            "plan_c128_online_decode_kernel",
            "online_c128_mtp_write_prefix_kernel",
            "_clear_unaccepted_c128_draft_states_kernel",
        ),
        "insert": (
            "fused_k_norm_rope_flashmla",
            "fused_k_norm_rope_q_flashmla",
            "fused_store_flashmla_cache_v41",
            "_triton_fused_store_flashmla_kernel",
            "_kv_norm_rope_fp8_store",
            "masked_set_kv_buffer_kernel",
            "set_mla_kv_concat_q_fp8_kernel",
            "fused_rope_store_kernel",
            "_fused_qk_rope_reshape_and_cache_kernel",
            "fused_fp8_qkv_kv_cache_kernel",
            "store_kvcache_kernel",
        ),
        "gather": (
            "get_mla_kv_buffer_kernel",
            "_gather_dequant_requant_fp8_paged_kernel",
            "load_cache_to_device_buffer_kernel",
            "load_to_gpu",
        ),
        "attention": (
            "_init_compressed_attn_metadata_kernel",
            "_fwd_kernel_unified",
            "_sparse_mla_split_k_kernel",
            "sparse_mla_q8kv8_prefill_kernel",
            "_fused_gather_attn_dsv4_splitk_kernel",
            "_paged_decode_reduce_kernel",
            "flashmla_sched_meta_kernel",
        ),
    },
    "TensorRT-LLM": {
        "indexer": ("IndexerTopKWithSortKernel", "convertReqIndexToGlobalIndexKernel"),
        "compress": ("prefillReductionKernel", "incrementalHcaCompressKernel"),
        "insert": ("setPagedKVCacheForMLAKernel", "updateKVCacheForCrossAttention"),
        "gather": ("loadPagedKVCacheForMLAKernel", "loadChunkedKVCacheForMLAKernel"),
        "attention": (
            "fmhaReductionKernel",
            "fmha_v2_flash_attention_bf16_64_128_S_q_kv_192x128_sm90_kernel",
            "masked_multihead_attention_kernel",
            "mergeAttnWithSoftmaxKernel",
        ),
    },
    "vLLM": {
        "indexer": (
            "_indexer_k_norm_rope_quant_store_kernel",
            "_k_norm_rope_mxfp4_store_kernel",
            "_cp_gather_indexer_quant_cache_kernel",
            "_fused_indexer_q_rope_quant_kernel",
            "_indexer_decode_metadata_kernel",
            "cooperative_topk_cs16",
            "topKPerRowDecode",
            "topK512MergeChunks",
            "_store_candidates_kernel",
            "_sparse_topk_remap_kernel",
            "_fill_short_context_topk_indices",
            "_prefill_topk_global_slots_kernel",
            "sparse_mla_index_remap_kernel",
            "_compute_global_topk_indices_and_lens_kernel",
        ),
        "compress": (
            "_fused_save_compress_norm_kernel",
            "_save_ring_rows_kernel",
            "_compress_gather_split_sparse_attn",
            "_finalize_norm_rope_quant_store_sparse_attn",
        ),
        "insert": (
            "fusedDeepseekV4FullCacheKernel",
            "fusedKimiK3MLAKeyConcatDsMlaInsertKernel",
            "fusedMiniMaxM3QNormRopeKVInsertKernel",
            "_rope_quant_insert_mxfp8_kernel",
            "_fused_norm_rope_kernel",
            "qknorm_rope_cache_kernel",
            "concat_and_cache_mla_rope_fused_kernel",
        ),
        "gather": (
            "_dequant_gather_kernel",
            "gather_and_maybe_dequant_cache_page",
            "cp_gather_and_upconvert_fp8_kv_cache_page",
            "cp_mha_gather_cache_kernel",
            "hisparse_gather_compact_kernel",
        ),
        "attention": (
            "_combine_topk_swa_indices_kernel",
            "_compute_swa_indices_and_lens_kernel",
            "kernel_paged_attention_2d",
            "reduce_segments",
            "_sparse_attn_decode_ragged_kernel",
            "paged_attention_v2_kernel",
            "_fwd_grouped_kernel_stage1",
            "_fwd_kernel",
        ),
    },
}
"""Engine -> what they do -> names."""

OTHERS = (
    "RadixTopKMaskLogitsKernel_MultiCTA",
    "TopKTopPSamplingFromProbKernel",
    "topk_softmax_triton_kernel",
    "topkGatingSoftmaxPack",
    "sampled_topk_kernel",
    "RopeQuantizeKernel",
    "fused_q_norm_rope",
    "ConcatMLAQKernel",
    "mla_output_gate_kernel",
    "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEE",
    "_compute_slot_mappings_kernel",
)
"""Work that a server would have without a cache, or whose name says too little."""
