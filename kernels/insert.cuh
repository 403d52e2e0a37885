// Quantise bf16 entries and write them into pages: one warp per entry.
//
// Compile-time: the format, see format.cuh.
#include "format.cuh"

// Loads entry i of bf16 values [., DSV_DIMS] and writes it to a physical entry.
__device__ __forceinline__ void insert_entry(u8* pages, const u8* values, i64 i, i64 entry) {
    const u8* source = values + i * (DSV_DIMS * 2);
    uint4 chunks[kChunksPerLane] = {};
#pragma unroll
    for (int c = 0; c < kChunksPerLane; ++c) {
        int chunk = lane_id() + c * kWarpSize;
        if (chunk < kChunks) chunks[c] = dsv_load<uint4>(source + chunk * 16);
    }
    encode_entry(data_row(pages, entry), scale_row(pages, entry), chunks);
}

// values: bf16[count, DSV_DIMS]; entries: int64[count], physical, distinct. An entry outside
// 0..num_entries-1 is skipped.
DSV_KERNEL void __launch_bounds__(256, 4)
    entry_insert(u8* pages, const u8* values, const i64* entries, int count, i64 num_entries) {
    for (i64 i = warp_id(); i < count; i += warp_count()) {
        i64 entry = entries[i];
        if (entry >= 0 && entry < num_entries) insert_entry(pages, values, i, entry);
    }
}

// A ring is one page of DSV_ENTRIES rows, and row position mod DSV_ENTRIES takes the token.
// values: bf16[count, DSV_DIMS]; slots, positions: int64[count]. A slot outside 0..num_slots-1 or
// a negative position is skipped.
//
// Tokens of a slot stand together, in order of position and without gaps, as a prompt chunk or a
// decode step brings them. So the token that falls on the same row later is DSV_ENTRIES further
// on, if the call has it, and the earlier one leaves the row to it. Without that order two warps
// might write one row at once, a mix of both tokens, but never anything else.
DSV_KERNEL void __launch_bounds__(256, 4)
    window_insert(u8* pages, const u8* values, const i64* slots, const i64* positions, int count,
                  i64 num_slots) {
    for (i64 i = warp_id(); i < count; i += warp_count()) {
        i64 slot = slots[i], position = positions[i], later = i + DSV_ENTRIES;
        i64 later_slot = later < count ? slots[later] : -1;
        i64 later_position = later < count ? positions[later] : -1;
        if (slot < 0 || slot >= num_slots || position < 0) continue;
        bool replaced = later_slot == slot && later_position > position &&
                        later_position - position == DSV_ENTRIES;
        if (!replaced) {
            insert_entry(pages, values, i, slot * DSV_ENTRIES + position % DSV_ENTRIES);
        }
    }
}
