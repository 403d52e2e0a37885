// Pool groups of tokens into entries and write them into pages.
//
// Compile-time: rows.cuh's and finish.cuh's parameters; DSV_SPLIT blocks that share the channels of
// an entry; DSV_AHEAD 1 where the loads of a batch of rows are to be under way together;
// DSV_CLUSTER_BYTES 0, or what pool_cluster.cuh needs, where a cluster of blocks pools an entry.
//
// Few entries complete in a step, and one of 128 rows is 512 KiB to read: DSV_SPLIT blocks pool
// it, each its part of the channels and all rows, so that no softmax is ever in two parts. RMSNorm
// needs all channels: with one block per entry they meet in shared memory; with several they
// meet in `scratch`, and flush_finish, launched next, ends the entry. A second kernel rather than
// a counter of finished blocks: nothing has to be zero beforehand, whatever became of an earlier
// launch, and a captured graph replays it as it is. A cluster needs neither scratch nor a second
// kernel.
#include "fold.cuh"
#include "finish.cuh"

constexpr int kSplit = DSV_SPLIT;
constexpr int kPieces = kDim / kWarpChannels / kSplit;   // of channels in a block, a warp's each
constexpr int kPoolWarps = kPieces < 16 ? kPieces : 16;  // leaves a thread 128 registers
constexpr int kPoolThreads = DSV_CLUSTER_BYTES ? kDim / 4 : kPoolWarps * kWarpSize;
constexpr int kBatchesAtOnce = 2;

static_assert(kSplit * kPieces * kWarpChannels == kDim, "channels in equal parts");

// Where finish_entry finds pooled channels: as they are, or in an online state.
struct Pooled {
    const float* channels;  // [kDim], shared or global
};
struct PooledState {
    const float* state;  // [3, kDim] of the slot
};
__device__ __forceinline__ Four load_pooled(const Pooled& pooled, int channel) {
    return cached_four(pooled.channels + channel);
}
__device__ __forceinline__ Four load_pooled(const PooledState& pooled, int channel) {
    return pooled_of(load_fold(pooled.state, channel));
}

#if DSV_CLUSTER_BYTES
#include "pool_cluster.cuh"
#else
// Pools this block's channels of an entry; the only block of an entry also ends it.
// kInChunk: some rows may lie in a chunk. own: the slot's state; pooled: float32[kDim] in global
// memory, where several blocks meet.
template <bool kInChunk>
__device__ __forceinline__ void pool_entry(const Rows& rows, const float* own, const Job& job,
                                           const Finish& how, float* pooled, u8* pages) {
    __shared__ Four shared[kDim / 4];
    int warp = threadIdx.x / kWarpSize;
#pragma unroll 1
    for (int piece = warp; piece < kPieces; piece += kPoolWarps) {
        int column = ((int)blockIdx.y * kPieces + piece) * kWarpChannels;
        Fold fold = fold_rows<kInChunk, kBatchesAtOnce, DSV_AHEAD>(rows, column);
        if (lane_id() >= kRunLanes) continue;
        column += lane_id() * 4;
        if (kOnline && rows.older > 0) fold = merge(load_fold(own, column), fold);
        if (kSplit == 1) {
            shared[column / 4] = pooled_of(fold);
        } else {
            store_four(pooled + column, pooled_of(fold));
        }
    }
    if (kSplit > 1) return;
    __syncthreads();
    if (warp == 0) finish_entry(Pooled{shared[0].at}, job, how, pages);
}
#endif

// ---- Groups that end with a token of a batch ---------------------------------------------------

// slots, positions, entries: int64[count], the token that ends a group and the physical entry. A
// slot or entry outside its range, or a position that ends no group (of the table), is skipped.
__device__ __forceinline__ Job flush_job(i64 i, const i64* slots, const i64* positions,
                                         const i64* entries, i64 num_slots, i64 num_entries,
                                         i64 num_groups) {
    i64 position = positions[i];
    Job job = {slots[i], 0, entries[i]};
    bool valid = job.slot >= 0 && job.slot < num_slots && position >= 0 &&
                 position % kRatio == kRatio - 1 && position / kRatio < num_groups &&
                 job.entry < num_entries;
    job.first = valid ? position - (kRatio - 1) : 0;
    if (!valid) job.entry = -1;
    return job;
}

#ifndef DSV_PART
#if DSV_STATE_ROWS > 0
// Blocks: (count, kSplit), of a cluster (count, kRuns). scratch: float32[count, kDim], unused if
// kSplit is 1.
DSV_KERNEL void __launch_bounds__(kPoolThreads)
    flush(const float* state, const i64* slots, const i64* positions, const i64* entries,
          const float* norm_weight, const Rope* rope, u32 norm_eps, float* scratch, u8* pages,
          i64 num_slots, i64 num_entries, i64 num_groups) {
    begin_kernel();
    i64 i = blockIdx.x;
    Job job = flush_job(i, slots, positions, entries, num_slots, num_entries, num_groups);
    if (job.entry < 0) return;
    const float* own = state + job.slot * kSlotFloats;
    Finish how = {norm_weight, rope, __uint_as_float(norm_eps)};
    Rows rows = rows_in_ring(own, job.first - kOverlapRows);
    pool_entry<false>(rows, own, job, how, scratch + i * kDim, pages);
}
#endif

#if DSV_SPLIT > 1 || DSV_STATE_ROWS == 0  // else flush itself ends an entry
// One warp per entry. pooled: float32[count, kDim] from flush; an online state itself, which is
// pooled already.
DSV_KERNEL void __launch_bounds__(128)
    flush_finish(const float* pooled, const i64* slots, const i64* positions, const i64* entries,
                 const float* norm_weight, const Rope* rope, u32 norm_eps, u8* pages,
                 int count, i64 num_slots, i64 num_entries, i64 num_groups) {
    begin_kernel();
    i64 i = warp_id();
    if (i >= count) return;
    Job job = flush_job(i, slots, positions, entries, num_slots, num_entries, num_groups);
    if (job.entry < 0) return;
    Finish how = {norm_weight, rope, __uint_as_float(norm_eps)};
    if (kOnline) {
        finish_entry(PooledState{pooled + job.slot * kSlotFloats}, job, how, pages);
    } else {
        finish_entry(Pooled{pooled + i * kDim}, job, how, pages);
    }
}
#endif

// ---- Groups that end inside a prompt chunk -----------------------------------------------------

// entries: int64[>= groups that end in the chunk], physical; one outside its range is skipped,
// as is a group beyond the table.
__device__ __forceinline__ Job chunk_job(i64 i, const Chunk& chunk, const i64* entries,
                                         i64 num_entries, i64 num_groups) {
    i64 group = chunk.start / kRatio + i;
    Job job = {chunk.slot, group * kRatio, -1};
    bool ends = chunk.tokens > 0 && (group + 1) * kRatio <= chunk.start + chunk.tokens;
    if (ends && group < num_groups && entries[i] < num_entries) job.entry = entries[i];
    return job;
}

// Blocks: (groups that can end in max_tokens, kSplit), of a cluster kRuns instead. chunk: see
// load_chunk; kv, score: float32[max_tokens, kChannels]; scratch: float32[groups, kDim], unused if
// kSplit is 1.
DSV_KERNEL void __launch_bounds__(kPoolThreads)
    chunk_flush(const float* state, const float* kv, const float* score, const float* ape,
                const i64* chunk, const i64* entries, const float* norm_weight,
                const Rope* rope, u32 norm_eps, float* scratch, u8* pages,
                i64 max_tokens, i64 num_slots, i64 num_entries, i64 num_groups) {
    begin_kernel();
    i64 i = blockIdx.x;
    Chunk own = load_chunk(chunk, max_tokens, num_slots);
    Job job = chunk_job(i, own, entries, num_entries, num_groups);
    if (job.entry < 0) return;
    const float* slot = state + job.slot * kSlotFloats;
    Rows rows = rows_in_chunk(slot, job.first - kOverlapRows, own, kv, score, ape);
    Finish how = {norm_weight, rope, __uint_as_float(norm_eps)};
    pool_entry<true>(rows, slot, job, how, scratch + i * kDim, pages);
}

#if DSV_SPLIT > 1  // else chunk_flush itself ends an entry
// One warp per group that can end in max_tokens; pooled: float32[count, kDim] from chunk_flush.
DSV_KERNEL void __launch_bounds__(128)
    chunk_finish(const float* pooled, const i64* chunk, const i64* entries,
                 const float* norm_weight, const Rope* rope, u32 norm_eps, u8* pages,
                 int count, i64 max_tokens, i64 num_slots, i64 num_entries, i64 num_groups) {
    begin_kernel();
    i64 i = warp_id();
    if (i >= count) return;
    Chunk own = load_chunk(chunk, max_tokens, num_slots);
    Job job = chunk_job(i, own, entries, num_entries, num_groups);
    if (job.entry < 0) return;
    Finish how = {norm_weight, rope, __uint_as_float(norm_eps)};
    finish_entry(Pooled{pooled + i * kDim}, job, how, pages);
}
#endif
#endif  // DSV_PART
