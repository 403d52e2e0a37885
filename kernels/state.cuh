// Compressor states: tokens come in. Compile-time parameters: see rows.cuh.
//
// A ring state is float32[slots, 2, kStateRows, kChannels], kv and biased score of the last
// tokens, row = position mod kStateRows. An online state is float32[slots, 3, kDim], the fold of
// the unfinished group.
#include "fold.cuh"

constexpr int kFours = kChannels / 4;  // 16-byte pieces of a token's kv or score

__device__ __forceinline__ void put_in_ring(float* ring, i64 position, int column, const Four& kv,
                                            const Four& score) {
    int row = (int)(position % kStateRows);
    store_four(ring + row * kChannels + column, kv);
    store_four(ring + (kStateRows + row) * kChannels + column, score);
}

// Adds 4 channels of a token to its slot's state: of kv, score float32[., kChannels] the token at
// row `token`; ape: float32[kRatio, kChannels].
__device__ __forceinline__ void append_four(float* state, const float* kv, const float* score,
                                            const float* ape, i64 token, i64 slot, i64 position,
                                            int column) {
    int in_group = (int)(position % kRatio);
    Four value = load_four(kv + token * kChannels + column);
    Four bias = cached_four(ape + in_group * kChannels + column);
    Four biased = add(load_four(score + token * kChannels + column), bias);
    float* own = state + slot * kSlotFloats;
    if (!kOnline) {
        put_in_ring(own, position, column, value, biased);
        return;
    }
    Fold token_fold = {biased, four(1.0f), value};
    // A first token does not look at what the last group left: a NaN must not reach it.
    store_fold(own, column,
               in_group == 0 ? token_fold : merge(load_fold(own, column), token_fold));
}

#ifndef DSV_PART
// kv, score: float32[count, kChannels]; ape: float32[kRatio, kChannels]; slots, positions:
// int64[count]. A slot outside 0 .. num_slots - 1 or a negative position skips the token. Of one
// slot: consecutive tokens, at most kStateRows; one where the state is online.
DSV_KERNEL void __launch_bounds__(256)
    state_append(float* state, const float* kv, const float* score, const float* ape,
                 const i64* slots, const i64* positions, int count, i64 num_slots) {
    begin_kernel();
    for (i64 i = thread_id(); i < (i64)count * kFours; i += thread_count()) {
        i64 token = i / kFours, slot = slots[token], position = positions[token];
        if (slot < 0 || slot >= num_slots || position < 0) continue;
        append_four(state, kv, score, ape, token, slot, position, (int)(i % kFours) * 4);
    }
}

__device__ __forceinline__ void keep_in_ring(float* own, const Chunk& chunk, const float* kv,
                                             const float* score, const float* ape) {
    i64 kept = chunk.tokens < kStateRows ? chunk.tokens : kStateRows;
    for (i64 i = thread_id(); i < kept * kFours; i += thread_count()) {
        i64 token = chunk.tokens - kept + i / kFours, position = chunk.start + token;
        int column = (int)(i % kFours) * 4;
        i64 at = token * kChannels + column;
        Four bias = cached_four(ape + position % kRatio * kChannels + column);
        put_in_ring(own, position, column, load_four(kv + at), add(load_four(score + at), bias));
    }
}

// Folds the group that the chunk leaves unfinished, if any, into the state.
__device__ __forceinline__ void keep_fold(float* own, const Chunk& chunk, const float* kv,
                                          const float* score, const float* ape) {
    i64 end = chunk.start + chunk.tokens, first = end - end % kRatio;
    if (first == end) return;
    Rows rows = rows_in_chunk(own, first, chunk, kv, score, ape);
    for (i64 i = warp_id(); i < kDim / kWarpChannels; i += warp_count()) {
        int column = (int)i * kWarpChannels, own_column = column + lane_id() % kRunLanes * 4;
        Fold fold = fold_rows<true, 1, false>(rows, column);
        if (lane_id() >= kRunLanes) continue;
        if (rows.older > 0) fold = merge(load_fold(own, own_column), fold);
        store_fold(own, own_column, fold);
    }
}

// What later entries need of a chunk: a ring takes its last kStateRows tokens, an online state
// the unfinished group. chunk: see load_chunk; kv, score: float32[max_tokens, kChannels].
// To be launched after chunk_flush, which reads the state as it was before the chunk.
DSV_KERNEL void __launch_bounds__(256)
    state_keep(float* state, const float* kv, const float* score, const float* ape,
               const i64* chunk, i64 max_tokens, i64 num_slots) {
    begin_kernel();
    Chunk own = load_chunk(chunk, max_tokens, num_slots);
    if (own.tokens == 0) return;
    float* slot = state + own.slot * kSlotFloats;
    if (kOnline) {
        keep_fold(slot, own, kv, score, ape);
    } else {
        keep_in_ring(slot, own, kv, score, ape);
    }
}
#endif  // DSV_PART
