// The best entries of each query token, by their scores.
//
// Compile-time: DSV_BLOCK_ENTRIES where columns of scores are those of candidate blocks, so many
// each, 0 where column j is entry j; DSV_PAGE_ENTRIES.
#include "largest.cuh"

struct Rows {
    const i64* lengths;     // [rows], entries that each sees
    const int* candidates;  // [rows, columns / DSV_BLOCK_ENTRIES], blocks
    const int* table;       // [num_slots, width]
    const i64* slots;       // [rows]
    int columns, num_slots, width;
};

// The entry of a row in a column; -1 where there is none.
__device__ __forceinline__ int entry_of(const Rows& rows, i64 length, int column) {
    i64 index = column;
    if constexpr (DSV_BLOCK_ENTRIES != 0) {
        constexpr int kSize = DSV_BLOCK_ENTRIES ? DSV_BLOCK_ENTRIES : 1;
        int block = rows.candidates[(i64)blockIdx.x * (rows.columns / kSize) + column / kSize];
        index = block < 0 ? length : (i64)block * kSize + column % kSize;
    }
    return index < length ? int(index) : -1;
}

__device__ __forceinline__ i64 length_of(const Rows& rows) {
    return rows.slots[blockIdx.x] >= 0 ? rows.lengths[blockIdx.x] : 0;
}

// Turns chosen columns into entries, logical and physical.
__device__ __forceinline__ void find_entries(const Rows& rows, int most, int* out, int* entries) {
    i64 length = length_of(rows), slot = rows.slots[blockIdx.x];
#pragma unroll 1
    for (int i = threadIdx.x; i < most; i += kThreads) {
        int index = out[i] < 0 ? -1 : entry_of(rows, length, out[i]), page = -1;
        if (index >= 0 && slot < rows.num_slots && index / DSV_PAGE_ENTRIES < rows.width) {
            page = rows.table[slot * rows.width + index / DSV_PAGE_ENTRIES];
        }
        out[i] = index;
        entries[i] = page < 0 ? -1 : int((i64)page * DSV_PAGE_ENTRIES + index % DSV_PAGE_ENTRIES);
    }
}

// scores: float32[rows, columns]; out, entries: int32[rows, most]; see contract.Backend.select_topk.
// A block takes a run of a row.
DSV_KERNEL void __launch_bounds__(kThreads, 1)
    select_topk(const float* scores, const i64* lengths, const int* candidates, const int* table,
                const i64* slots, int* out, int* entries, u32* keys, int* places, int columns,
                int most, int num_slots, int width) {
    begin_kernel();
    __shared__ Shared shared;
    Rows rows = {lengths, candidates, table, slots, columns, num_slots, width};
    i64 length = length_of(rows), first = (i64)blockIdx.x * most;
    const float* row = scores + (i64)blockIdx.x * columns;
    int total = DSV_BLOCK_ENTRIES || length > columns ? columns : int(length < 0 ? 0 : length);
    auto key = [&](int column) {
        bool there = !DSV_BLOCK_ENTRIES || entry_of(rows, length, column) >= 0;  // all before `total`
        return there ? ordered(row[column]) : kNone;
    };
    if (choose_of_row(total, most, key, out + first, {keys, places}, shared)) {
        find_entries(rows, most, out + first, entries + first);
    }
}

DSV_KERNEL void __launch_bounds__(kThreads, 1)
    merge_topk(const i64* lengths, const int* candidates, const int* table, const i64* slots,
               int* out, int* entries, u32* keys, int* places, int runs, int columns, int most,
               int num_slots, int width) {
    begin_kernel();
    __shared__ Shared shared;
    Rows rows = {lengths, candidates, table, slots, columns, num_slots, width};
    i64 first = (i64)blockIdx.x * most;
    choose_of_runs(runs, most, out + first, {keys, places}, shared);
    find_entries(rows, most, out + first, entries + first);
}
