// Everything that a decode step writes to one layer, in one launch: the window ring, the
// compressor's state and the entries that its tokens complete, and the indexer's if there is one.
//
// Compile-time: format.cuh's parameters of the window (DSV_WINDOW_DIMS and so on); those of
// format.cuh, state.cuh and flush.cuh of the compressed KV (DSV_MAIN_...) and, where DSV_INDEXER is
// 1, of the indexer keys (DSV_KEYS_...).
//
// Blocks: (count tokens, then again as many for indexer keys; DSV_MAIN_SPLIT). Of a block's threads
// the first pool an entry, if the token completes one; at the same time DSV_HELPERS others append
// it to the state; and a last warp writes its window entry. No two of them touch the same memory,
// see pooled_write.cuh.
#include "four.cuh"

namespace window {
#define DSV_PART WINDOW
#include "parts.cuh"
#include "insert.cuh"
#undef DSV_PART
}  // namespace window

namespace compressed {
#define DSV_PART MAIN
#include "parts.cuh"
#include "pooled_write.cuh"
#undef DSV_PART
}  // namespace compressed

#if DSV_INDEXER
namespace keys {
#define DSV_PART KEYS
#include "parts.cuh"
#include "pooled_write.cuh"
#undef DSV_PART
}  // namespace keys
static_assert(compressed::kSplit == 1 && keys::kSplit == 1, "one block an entry, blockIdx.y is 0");
static_assert(keys::kPooling <= compressed::kPooling, "keys are pooled by as many threads");
#endif

constexpr int kHelpers = DSV_HELPERS;
constexpr int kWindowWarp = compressed::kPooling + kHelpers;  // its first thread
constexpr int kStepThreads = kWindowWarp + kWarpSize;

// ring: the pages of num_slots rings; values: bf16[count, D]; slots, positions: int64[count].
// Then of the compressed KV, and of the indexer keys: the state of num_slots slots, kv, score, ape,
// entries int64[count], -1 where a token completes none, norm weight, rope, epsilon, pages.
// scratch: float32[count, D] and arrivals: u32[count], zero before and after; unused if
// DSV_MAIN_SPLIT is 1. A slot outside 0 .. num_slots - 1 or a negative position skips the token; an
// entry outside its range or a position that ends no group writes no entry. Tokens of a slot stand
// together, in order and without gaps, no more of them than a state takes before a flush.
DSV_KERNEL void __launch_bounds__(kStepThreads, 2)
    step_write(u8* ring, const u8* values, const i64* slots, const i64* positions, int count,
               i64 num_slots, float* scratch, u32* arrivals, float* state, const float* kv,
               const float* score, const float* ape, const i64* entries, const float* norm_weight,
               const compressed::Rope* rope, u32 norm_eps, u8* pages, i64 num_entries,
               i64 num_groups
#if DSV_INDEXER
               ,
               float* key_state, const float* key_kv, const float* key_score, const float* key_ape,
               const i64* key_entries, const float* key_norm_weight, const keys::Rope* key_rope,
               u32 key_norm_eps, u8* key_pages, i64 num_keys, i64 num_key_groups
#endif
    ) {
    begin_kernel();
    i64 i = blockIdx.x;
#if DSV_INDEXER
    if (i >= count) {
        if (threadIdx.x >= kWindowWarp) return;
        keys::Finish how = {key_norm_weight, key_rope, __uint_as_float(key_norm_eps)};
        keys::Write write = {key_state,   key_kv,    key_score, key_ape,  slots,
                             positions,   key_entries, how,     nullptr,  nullptr,
                             key_pages,   num_slots, num_keys,  num_key_groups};
        keys::write_token(write, i - count, kWindowWarp - keys::kPooling);
        return;
    }
#endif
    if (threadIdx.x >= kWindowWarp) {
        if (blockIdx.y > 0) return;
        i64 entry = window::window_entry(i, slots, positions, count, num_slots);
        if (entry >= 0) window::insert_entry(ring, values, i, entry);
        return;
    }
    compressed::Finish how = {norm_weight, rope, __uint_as_float(norm_eps)};
    compressed::Write write = {state,     kv,      score,     ape,         slots,
                               positions, entries, how,       scratch,     arrivals,
                               pages,     num_slots, num_entries, num_groups};
    compressed::write_token(write, i, kHelpers);
}
