// Read entries out of pages and decode them to bf16.
//
// Compile-time: the format, see format.cuh; DSV_UNROLL, entries a warp has in flight; DSV_AHEAD 1
// where a warp looks up the places of all its entries at once, up to 32, a lane each; DSV_RING 1
// where pages are rings.
//
// A warp takes an entry (two of them where 16 lanes hold one), and DSV_UNROLL such steps at once:
// first all indices, then all bytes, then the stores, so that the latencies overlap. Whatever is
// out of range gives zeros and is never read. Outputs have fewer than 2^31 entries.
//
// An index leads to a cell of the table and that to a page: two waits before the first byte. With
// DSV_AHEAD they come once for a warp and not at every step, which matters where a warp has few.
#include "format.cuh"

constexpr int kLanes = kChunks < kWarpSize ? kChunks : kWarpSize;  // that share an entry

static_assert(kWarpSize % kLanes == 0, "an entry fills a warp, or a power of two of them do");

// What is asked for, as read from the arguments, with the output row it goes to, and where it is
// in the pages; page -1: nowhere.
struct Wanted {
    i64 slot, length;
    int index;
    u32 row;
};
struct Place {
    int page, row;
};

__device__ __forceinline__ Place place_in(i64 page, int row, i64 num_pages) {
    return {page >= 0 && page < num_pages ? int(page) : -1, row};
}

// Reads the entry at a place into `entry`; nowhere leaves it as it is.
__device__ __forceinline__ void load_place(const u8* pages, const Place& place, int lane,
                                           StoredEntry& entry) {
    if (place.page < 0) return;
    entry = load_entry(data_row_at(pages, place.page, place.row),
                       scale_row_at(pages, place.page, place.row), lane);
}

__device__ __forceinline__ void store_row(u8* out, u32 row, int lane, const StoredEntry& entry) {
#pragma unroll
    for (int c = 0; c < kChunksPerLane; ++c) {
        int chunk = lane + c * kWarpSize;
        u8* target = out + (i64)row * (DSV_DIMS * 2) + chunk * 16;
        if (chunk < kChunks) dsv_store(target, decode_chunk(entry, c, lane));
    }
}

// out: bf16[rows, DSV_DIMS], of which `count` are written. read(i) loads what is asked for i-th,
// find turns that into a place.
template <typename Read, typename Find>
__device__ __forceinline__ void gather_step_by_step(const u8* pages, u8* out, u32 count, Read read,
                                                    Find find) {
    u32 stride = u32(thread_count()) / kLanes;
    int lane = lane_id() % kLanes;
    for (u32 first = u32(thread_id()) / kLanes; first < count; first += DSV_UNROLL * stride) {
        Wanted wanted[DSV_UNROLL];
        Place places[DSV_UNROLL];
        StoredEntry entries[DSV_UNROLL] = {};  // zero bytes decode to zeros
#pragma unroll
        for (int u = 0; u < DSV_UNROLL; ++u) {
            u32 i = first + u * stride;
            wanted[u] = read(i < count ? i : first);  // no branch between the loads
        }
#pragma unroll
        for (int u = 0; u < DSV_UNROLL; ++u) places[u] = find(wanted[u]);
#pragma unroll
        for (int u = 0; u < DSV_UNROLL; ++u) {
            if (first + u * stride < count) load_place(pages, places[u], lane, entries[u]);
        }
#pragma unroll
        for (int u = 0; u < DSV_UNROLL; ++u) {
            if (first + u * stride < count) store_row(out, wanted[u].row, lane, entries[u]);
        }
    }
}

// The same; entry k of a round is the one that lane k has looked up.
template <typename Read, typename Find>
__device__ __forceinline__ void gather_ahead(const u8* pages, u8* out, u32 count, Read read,
                                             Find find) {
    constexpr int kTogether = kWarpSize / kLanes;  // entries a warp takes in one step
    u32 stride = u32(warp_count());
    int lane = lane_id() % kLanes, turn = lane_id() / kLanes;
    for (u32 first = u32(warp_id()); first < count; first += kWarpSize * stride) {
        u32 left = (count - first + stride - 1) / stride;
        int here = left < kWarpSize ? int(left) : kWarpSize;
        Wanted wanted = read(first + (lane_id() < here ? lane_id() : 0) * stride);
        Place found = find(wanted);
#pragma unroll 1
        for (int step = 0; step < here; step += DSV_UNROLL * kTogether) {
            StoredEntry entries[DSV_UNROLL] = {};
            u32 rows[DSV_UNROLL];
#pragma unroll
            for (int u = 0; u < DSV_UNROLL; ++u) {
                int k = step + u * kTogether + turn;  // beyond 31 it comes round, unused
                Place place = {__shfl_sync(kFullWarp, found.page, k),
                               __shfl_sync(kFullWarp, found.row, k)};
                rows[u] = __shfl_sync(kFullWarp, wanted.row, k);
                if (k < here) load_place(pages, place, lane, entries[u]);
            }
#pragma unroll
            for (int u = 0; u < DSV_UNROLL; ++u) {
                int k = step + u * kTogether + turn;
                if (k < here) store_row(out, rows[u], lane, entries[u]);
            }
        }
    }
}

template <typename Read, typename Find>
__device__ __forceinline__ void gather(const u8* pages, u8* out, u32 count, Read read, Find find) {
    if (DSV_AHEAD) {
        gather_ahead(pages, out, count, read, find);
    } else {
        gather_step_by_step(pages, out, count, read, find);
    }
}

// Blocks of every slot: int32[num_slots, width].
struct Table {
    const int* blocks;
    int num_slots, width;
    i64 num_pages;
};

// A logical entry of a slot: nowhere if it is not below the length or has no block.
__device__ __forceinline__ Place look_up(const Table& table, const Wanted& wanted) {
    int column = wanted.index / DSV_ENTRIES;
    bool valid = (wanted.index >= 0) & (wanted.index < wanted.length) & (column < table.width) &
                 (wanted.slot >= 0) & (wanted.slot < table.num_slots);  // no branches
    int block = valid ? table.blocks[wanted.slot * table.width + column] : -1;
    return place_in(block, wanted.index % DSV_ENTRIES, table.num_pages);
}

#if !DSV_RING
// Chosen entries: out bf16[requests, choices, DSV_DIMS]. slots, lengths: int64[requests];
// indices: int32[requests, choices], logical.
DSV_KERNEL void __launch_bounds__(256, 4)
    gather_topk(const u8* pages, const int* blocks, const i64* slots, const int* indices,
                const i64* lengths, u8* out, int requests, int choices, int num_slots, int width,
                i64 num_pages) {
    begin_kernel();
    Table table = {blocks, num_slots, width, num_pages};
    auto read = [&](u32 i) {
        u32 request = i / choices;
        return Wanted{slots[request], lengths[request], indices[i], i};
    };
    auto find = [&](const Wanted& wanted) { return look_up(table, wanted); };
    gather(pages, out, u32(requests) * choices, read, find);
}

// Largest length, from 0 to `most`, by all lanes together.
__device__ __forceinline__ u32 longest_of(const i64* lengths, int requests, int most) {
    i64 longest = 0;
#pragma unroll 1
    for (int i = lane_id(); i < requests; i += kWarpSize) longest = max(longest, lengths[i]);
    int bounded = longest < most ? (int)longest : most;
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
        bounded = max(bounded, __shfl_xor_sync(kFullWarp, bounded, distance));
    }
    return u32(bounded);
}

// Entries 0..length-1 of each request, zeros up to the largest length, nothing behind it, so that
// a captured launch costs what the batch needs: out bf16[requests, most, DSV_DIMS].
DSV_KERNEL void __launch_bounds__(256, 4)
    gather_all(const u8* pages, const int* blocks, const i64* slots, const i64* lengths, u8* out,
               int requests, int most, int num_slots, int width, i64 num_pages) {
    begin_kernel();
    Table table = {blocks, num_slots, width, num_pages};
    u32 longest = longest_of(lengths, requests, most);
    auto read = [&](u32 i) {
        u32 request = i / longest, index = i - request * longest;
        return Wanted{slots[request], lengths[request], int(index), request * most + index};
    };
    auto find = [&](const Wanted& wanted) { return look_up(table, wanted); };
    gather(pages, out, u32(requests) * longest, read, find);
}

// Physical entries: out bf16[count, DSV_DIMS]; entries: int32[count].
DSV_KERNEL void __launch_bounds__(256, 4)
    gather_entries(const u8* pages, const int* entries, u8* out, int count, i64 num_pages) {
    begin_kernel();
    auto read = [&](u32 i) { return Wanted{0, 0, entries[i], i}; };
    auto find = [&](const Wanted& wanted) {
        int page = wanted.index < 0 ? -1 : wanted.index / DSV_ENTRIES;
        return place_in(page, wanted.index % DSV_ENTRIES, num_pages);
    };
    gather(pages, out, count, read, find);
}
#else
// The last min(tokens, window) rows of each ring, oldest first, zeros after: out bf16[requests,
// window, DSV_DIMS]. A ring is one page, row = position mod DSV_ENTRIES. slots, tokens:
// int64[requests], tokens of each request so far.
DSV_KERNEL void __launch_bounds__(256, 4)
    gather_window(const u8* pages, const i64* slots, const i64* tokens, u8* out, int requests,
                  int window, i64 num_slots) {
    begin_kernel();
    auto read = [&](u32 i) {
        u32 request = i / window;
        return Wanted{slots[request], tokens[request], int(i - request * window), i};
    };
    auto find = [&](const Wanted& wanted) {
        i64 first = wanted.length > window ? wanted.length - window : 0;
        i64 position = first + wanted.index;
        i64 slot = position < wanted.length ? wanted.slot : -1;
        return place_in(slot, int(position % DSV_ENTRIES), num_slots);
    };
    gather(pages, out, u32(requests) * window, read, find);
}
#endif  // DSV_RING
