// Which entries a step's tokens complete: what flush takes, worked out in the same graph.
//
// Compile-time: DSV_RATIO tokens an entry, DSV_BLOCK_ENTRIES entries a block, DSV_SLOTS rows and
// DSV_WIDTH columns of a block table.
#include "common.cuh"

// The entry that each token completes, physical, -1 where none, for every lane: blockIdx.y.
// cells: int32[lanes, DSV_SLOTS, DSV_WIDTH]; slots, positions: int64[count]; entries:
// int64[lanes, stride], of which the first count of a lane are written.
DSV_KERNEL void __launch_bounds__(256)
    completed_entries(const int* cells, const i64* slots, const i64* positions, i64* entries,
                      int count, int stride) {
    begin_kernel();
    cells += blockIdx.y * ((i64)DSV_SLOTS * DSV_WIDTH);
    entries += (i64)blockIdx.y * stride;
    for (i64 i = thread_id(); i < count; i += thread_count()) {
        i64 slot = slots[i], position = positions[i], entry = -1;
        i64 logical = position / DSV_RATIO, column = logical / DSV_BLOCK_ENTRIES;
        bool ends = slot >= 0 && slot < DSV_SLOTS && position >= 0 &&
                    position % DSV_RATIO == DSV_RATIO - 1 && column < DSV_WIDTH;
        if (ends) {
            i64 block = cells[slot * DSV_WIDTH + column];
            if (block >= 0) entry = block * DSV_BLOCK_ENTRIES + logical % DSV_BLOCK_ENTRIES;
        }
        entries[i] = entry;
    }
}
