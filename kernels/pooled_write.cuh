// One token into a compressor's state, and the entry that it completes: state_append and flush in
// one go, for a part of a fused kernel.
//
// Compile-time: state.cuh's and flush.cuh's parameters.
//
// The entry pools tokens of this very call, which other threads append at the same time. So it
// reads those where they came from and only older ones in the ring, none of whose rows this call
// writes: a slot has at most kStateRows - kRows + 1 tokens in it. Nobody waits for anybody, and
// threads and blocks may come in any order. An online state is one warp's: it reads what it wrote.
#include "state.cuh"
#include "flush.cuh"

constexpr int kPooling = kOnline ? kWarpSize : kPoolThreads;  // threads that may write an entry

// What a step brings to a compressor, and where it goes.
struct Write {
    float* state;
    const float* kv;  // [count, kChannels] each
    const float* score;
    const float* ape;  // [kRatio, kChannels]
    const i64* slots;  // [count] each
    const i64* positions;
    const i64* entries;
    Finish how;
    float* scratch;  // [count, kDim] and [count] zeros, where blocks of an entry meet
    u32* arrivals;
    u8* pages;
    i64 num_slots, num_entries, num_groups;
};

// How many tokens of token i's slot the call has up to it, itself included.
__device__ __forceinline__ int arrived(const Write& write, i64 i) {
    int before = 0;
    for (int k = 1; k <= kStateRows - kRows; ++k) {
        bool next = before == k - 1 && i >= k && write.slots[i - k] == write.slots[i] &&
                    write.positions[i - k] == write.positions[i] - k;
        before += next;
    }
    return before + 1;
}

// The token that completes an entry is its last row.
__device__ __forceinline__ Rows rows_with_arrived(const Write& write, i64 i, const Job& job,
                                                  const float* own) {
    int count = arrived(write, i), older = kRows - count;
    i64 first = i - (count - 1);
    Rows rows = rows_in_ring(own, job.first - kOverlapRows);
    rows.older = older < 0 ? 0 : older;
    rows.kv = write.kv + first * kChannels;
    rows.score = write.score + first * kChannels;
    rows.ape = write.ape;
    rows.chunk_row = -older;
    rows.last = count - 1;
    return rows;
}

// Whether this block is the last of an entry's; all of them ask, all threads of kPooling.
__device__ __forceinline__ bool is_last(u32* arrivals) {
    __shared__ u32 before;
    __threadfence();  // what this thread has pooled comes before its block's arrival
    __syncthreads();
    if (threadIdx.x == 0) before = atomicInc(arrivals, kSplit - 1);  // the last one leaves a 0
    __syncthreads();
    __threadfence();
    return before == kSplit - 1;
}

// Appends this block's channels of token i: by `threads` threads, of which this is `thread`.
__device__ __forceinline__ void append_token(const Write& write, i64 i, int thread, int threads) {
    i64 slot = write.slots[i], position = write.positions[i];
    if (slot < 0 || slot >= write.num_slots || position < 0) return;
    constexpr int kOwn = kChannels / kSplit;
    for (int column = thread * 4; column < kOwn; column += threads * 4) {
        append_four(write.state, write.kv, write.score, write.ape, i, slot, position,
                    (int)blockIdx.y * kOwn + column);
    }
}

// Token i, by blocks blockIdx.y = 0 .. kSplit - 1 of kPooling threads, which write the entry if
// there is one, and `helpers` more, which append at the same time.
__device__ __forceinline__ void write_token(const Write& write, i64 i, int helpers) {
    if constexpr (kOnline) {
        if (threadIdx.x < kPooling) append_token(write, i, threadIdx.x, kPooling);
        __syncwarp();
    } else if (threadIdx.x >= kPooling) {
        append_token(write, i, threadIdx.x - kPooling, helpers);
    }
    if (threadIdx.x >= kPooling) return;
    Job job = flush_job(i, write.slots, write.positions, write.entries, write.num_slots,
                        write.num_entries, write.num_groups);
    if (job.entry < 0) return;
    const float* own = write.state + job.slot * kSlotFloats;
    if constexpr (kOnline) {
        finish_entry(PooledState{own}, job, write.how, write.pages);
    } else {
        float* pooled = write.scratch + i * kDim;
        Rows rows = rows_with_arrived(write, i, job, own);
        pool_entry<true>(rows, own, job, write.how, pooled, write.pages);
        if constexpr (kSplit > 1) {
            if (is_last(write.arrivals + i) && threadIdx.x < kWarpSize) {
                finish_entry(Pooled{pooled}, job, write.how, write.pages);
            }
        }
    }
}
