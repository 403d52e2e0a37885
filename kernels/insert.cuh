// Quantise bf16 entries and write them into pages: a warp takes an entry.
//
// Compile-time: the format, see format.cuh, and DSV_PAIRED 1 where a warp has two of them under
// way, and where the next two go: what is read does not depend on where it is written.
#include "format.cuh"

constexpr int kAtOnce = DSV_PAIRED ? 2 : 1;

// Entry i of bf16 values [., DSV_DIMS], this lane's chunks of it.
struct Values {
    uint4 chunks[kChunksPerLane];
};
__device__ __forceinline__ Values load_values(const u8* values, i64 i) {
    Values found = {};
#pragma unroll
    for (int c = 0; c < kChunksPerLane; ++c) {
        int chunk = lane_id() + c * kWarpSize;
        const u8* source = values + i * (DSV_DIMS * 2) + chunk * 16;
        if (chunk < kChunks) found.chunks[c] = dsv_load<uint4>(source);
    }
    return found;
}

__device__ __forceinline__ void store_values(u8* pages, const Values& values, i64 entry) {
    encode_entry(data_row(pages, entry), scale_row(pages, entry), values.chunks);
}

__device__ __forceinline__ void insert_entry(u8* pages, const u8* values, i64 i, i64 entry) {
    store_values(pages, load_values(values, i), entry);
}

// Inserts values 0 .. count - 1; find(i) is the physical entry that the i-th goes to, or negative.
template <typename Find>
__device__ __forceinline__ void insert_one_by_one(u8* pages, const u8* values, i64 count,
                                                  Find find) {
    for (i64 i = warp_id(); i < count; i += warp_count()) {
        i64 entry = find(i);
        if (entry >= 0) insert_entry(pages, values, i, entry);
    }
}
template <typename Find>
__device__ __forceinline__ void insert_in_pairs(u8* pages, const u8* values, i64 count,
                                                Find find) {
    i64 stride = warp_count(), first = warp_id();
    i64 next[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
        next[u] = first + u * stride < count ? find(first + u * stride) : -1;
    }
    for (; first < count; first += kAtOnce * stride) {
        Values loaded[kAtOnce];
        i64 entries[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
            i64 i = first + u * stride, later = i + kAtOnce * stride;
            loaded[u] = load_values(values, i < count ? i : first);  // no branch in between
            entries[u] = next[u];
            next[u] = later < count ? find(later) : -1;
        }
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
            if (entries[u] >= 0) store_values(pages, loaded[u], entries[u]);
        }
    }
}
template <typename Find>
__device__ __forceinline__ void insert(u8* pages, const u8* values, i64 count, Find find) {
    if (DSV_PAIRED) {
        insert_in_pairs(pages, values, count, find);
    } else {
        insert_one_by_one(pages, values, count, find);
    }
}

#if !defined(DSV_PART) && !DSV_RING
// values: bf16[count, DSV_DIMS]; entries: int64[count], physical, distinct. An entry outside
// 0..num_entries-1 is skipped.
DSV_KERNEL void __launch_bounds__(256, 4)
    entry_insert(u8* pages, const u8* values, const i64* entries, int count, i64 num_entries) {
    begin_kernel();
    insert(pages, values, count, [&](i64 i) {
        i64 entry = entries[i];
        return entry < num_entries ? entry : -1;
    });
}
#endif

// A ring is one page of DSV_ENTRIES rows, and row position mod DSV_ENTRIES takes the token. Here
// the entry that token i goes to, negative for none: slots, positions: int64[count]; a slot outside
// 0..num_slots-1 or a negative position is skipped.
//
// Tokens of a slot stand together, in order of position and without gaps, as a prompt chunk or a
// decode step brings them. So the token that falls on the same row later is DSV_ENTRIES further
// on, if the call has it, and the earlier one leaves the row to it. Without that order two warps
// might write one row at once, a mix of both tokens, but never anything else.
__device__ __forceinline__ i64 window_entry(i64 i, const i64* slots, const i64* positions,
                                            int count, i64 num_slots) {
    i64 slot = slots[i], position = positions[i], later = i + DSV_ENTRIES;
    i64 later_slot = later < count ? slots[later] : -1;
    i64 later_position = later < count ? positions[later] : -1;
    if (slot < 0 || slot >= num_slots || position < 0) return -1;
    bool replaced = later_slot == slot && later_position > position &&
                    later_position - position == DSV_ENTRIES;
    return replaced ? -1 : slot * DSV_ENTRIES + position % DSV_ENTRIES;
}

#if !defined(DSV_PART) && DSV_RING
DSV_KERNEL void __launch_bounds__(256, 4)
    window_insert(u8* pages, const u8* values, const i64* slots, const i64* positions, int count,
                  i64 num_slots) {
    begin_kernel();
    insert(pages, values, count, [&](i64 i) {
        return window_entry(i, slots, positions, count, num_slots);
    });
}
#endif
