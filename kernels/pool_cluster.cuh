// Pooling an entry by a cluster of blocks: one kernel, without scratch. A part of flush.cuh.
//
// A block has one run of rows, all channels, 4 of them a thread. Bulk copies bring the rows, all of
// them under way at once, and a batch is folded as soon as it is there. Then each block gets the
// folds of its share of channels from all others, merges them as fold_rows does, and sends what it
// pooled to the first block, which ends the entry.
//
// Compile-time: DSV_CLUSTER_BYTES of shared memory a block.
#include "cluster.cuh"

constexpr int kBatches = kRunRows / kBatchRows;
constexpr int kShare = kPoolThreads / kRuns;  // of channels, in fours, that a block merges
constexpr u32 kRowBytes = kDim * 4;

struct Shared {
    Four rows[kRunRows][2][kPoolThreads];  // kv and score
    Four folds[3][kShare][kRuns + 1];      // one more: no two of 8 lanes meet in a bank
    Four pooled[kPoolThreads];             // of the first block
    ByteBarrier arrived[kBatches];
};

static_assert(kRuns > 1 && !DSV_OVERLAP, "a run of rows for each block, of equal channels");
static_assert(kShare * kRuns == kPoolThreads, "each thread merges one run of 4 channels");
static_assert(sizeof(Shared) <= DSV_CLUSTER_BYTES, "a launch gives it so much");

// Starts copies of this block's rows; by one warp.
template <bool kInChunk>
__device__ __forceinline__ void copy_rows(const Rows& rows, int first, Shared& shared) {
    for (int copy = lane_id(); copy < 2 * kRunRows; copy += kWarpSize) {
        int i = copy / 2, scores = copy % 2;
        RowAt at = locate_row<kInChunk>(rows, first + i);
        copy_bytes(shared.rows[i][scores], scores ? at.score : at.kv, kRowBytes,
                   &shared.arrived[i / kBatchRows]);
    }
}

// Folds this block's rows into 4 channels of each thread.
template <bool kInChunk>
__device__ __forceinline__ Fold fold_run(const Rows& rows, int first, Shared& shared) {
    Fold fold = empty_fold();
#pragma unroll 1
    for (int batch = 0; batch < kBatches; ++batch) {
        wait_bytes(&shared.arrived[batch]);
        Four kv[kBatchRows], score[kBatchRows];
#pragma unroll
        for (int i = 0; i < kBatchRows; ++i) {
            int row = batch * kBatchRows + i;
            kv[i] = shared.rows[row][0][threadIdx.x];
            score[i] = shared.rows[row][1][threadIdx.x];
            prepare_row<kInChunk>(rows, first + row, threadIdx.x * 4, kv[i], score[i]);
        }
        fold_batch(fold, kv, score);
    }
    return fold;
}

// Sends each thread's fold to the block that merges its channels.
__device__ __forceinline__ void send_fold(const Fold& fold, int run, Shared& shared) {
    int owner = threadIdx.x / kShare, at = threadIdx.x % kShare;
    store_to(&shared.folds[0][at][run], owner, bits_of(fold.top));
    store_to(&shared.folds[1][at][run], owner, bits_of(fold.sum));
    store_to(&shared.folds[2][at][run], owner, bits_of(fold.weighted));
}

// Merges the runs of this block's channels, in neighbouring lanes and in the order of fold_rows;
// those of run 0 return the fold.
__device__ __forceinline__ Fold merge_runs(const Shared& shared) {
    int at = threadIdx.x / kRuns, run = threadIdx.x % kRuns;
    Fold fold = {shared.folds[0][at][run], shared.folds[1][at][run], shared.folds[2][at][run]};
#pragma unroll
    for (int lanes = 1; lanes < kRuns; lanes *= 2) fold = merge(fold, shuffle_xor(fold, lanes));
    return fold;
}

// As the other pool_entry, which needs neither cluster nor shared memory. Every thread of the
// cluster comes here, or none does.
template <bool kInChunk>
__device__ __forceinline__ void pool_entry(const Rows& rows, const float* own, const Job& job,
                                           const Finish& how, float*, u8* pages) {
    Shared& shared = *(Shared*)dynamic_shared();
    int rank = cluster_rank();
    cluster_begin();
    if (threadIdx.x == 0) {
        start_barriers(shared.arrived, kBatches, 1);
        expect_bytes(shared.arrived, kBatches, 2 * kBatchRows * kRowBytes);
    }
    __syncthreads();
    if (threadIdx.x < kWarpSize) copy_rows<kInChunk>(rows, rank * kRunRows, shared);
    Fold fold = fold_run<kInChunk>(rows, rank * kRunRows, shared);
    cluster_wait();  // all blocks have begun: there is a place to send to
    send_fold(fold, rank, shared);
    cluster_arrive();
    cluster_wait();
    fold = merge_runs(shared);
    if (threadIdx.x % kRuns == 0) {
        int four = rank * kShare + threadIdx.x / kRuns;
        if (kOnline && rows.older > 0) fold = merge(load_fold(own, four * 4), fold);
        store_to(&shared.pooled[four], 0, bits_of(pooled_of(fold)));
    }
    cluster_arrive();
    cluster_wait();
    if (rank == 0 && threadIdx.x < kWarpSize) {
        finish_entry(Pooled{shared.pooled[0].at}, job, how, pages);
    }
}
