// The best blocks of neighbouring entries of each query token: candidates of later layers.
//
// Compile-time: DSV_BLOCK_ENTRIES.
#include "largest.cuh"

// scores: float32[rows, columns]; out: int32[rows, most]; see contract.Backend.select_blocks. A block
// of threads takes a run of a row.
DSV_KERNEL void __launch_bounds__(kThreads, 1)
    select_blocks(const float* scores, const i64* lengths, int* out, u32* keys, int* places,
                  int columns, int most) {
    begin_kernel();
    __shared__ Shared shared;
    i64 length = lengths[blockIdx.x];
    int seen = int(length < 0 ? 0 : length < columns ? length : columns);
    int total = (seen + DSV_BLOCK_ENTRIES - 1) / DSV_BLOCK_ENTRIES;
    const float* row = scores + (i64)blockIdx.x * columns;
    auto key = [&](int block) {
        int first = block * DSV_BLOCK_ENTRIES;
        float best = row[first];
#pragma unroll
        for (int i = 1; i < DSV_BLOCK_ENTRIES; ++i) best = fmaxf(best, row[min(first + i, seen - 1)]);
        return block == total - 1 ? 0xffffffffu : ordered(best);  // the newest entry's, always
    };
    choose_of_row(total, most, key, out + (i64)blockIdx.x * most, {keys, places}, shared);
}

DSV_KERNEL void __launch_bounds__(kThreads, 1)
    merge_blocks(int* out, u32* keys, int* places, int runs, int most) {
    begin_kernel();
    __shared__ Shared shared;
    choose_of_runs(runs, most, out + (i64)blockIdx.x * most, {keys, places}, shared);
}
