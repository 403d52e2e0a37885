// Read entries out of pages and decode them to bf16.
//
// Compile-time: the format, see format.cuh, and DSV_UNROLL, entries a warp has in flight.
//
// A warp takes an entry (two of them where 16 lanes hold one), and DSV_UNROLL such steps at once:
// first all indices, then all bytes, then the stores, so that the latencies overlap. Whatever is
// out of range gives zeros and is never read. Outputs have fewer than 2^31 entries.
#include "format.cuh"

constexpr int kLanes = kChunks < kWarpSize ? kChunks : kWarpSize;  // that share an entry

static_assert(kWarpSize % kLanes == 0, "an entry fills a warp, or a power of two of them do");

// What is asked for, as read from the arguments, with the output row it goes to, and where that
// lies; page -1: nowhere.
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

// out: bf16[rows, DSV_DIMS], of which `count` are written. read(i) loads what is asked for i-th,
// find turns that into a place.
template <typename Read, typename Find>
__device__ __forceinline__ void gather(const u8* pages, u8* out, u32 count, Read read, Find find) {
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
            if (places[u].page < 0 || first + u * stride >= count) continue;
            entries[u] = load_entry(data_row_at(pages, places[u].page, places[u].row),
                                    scale_row_at(pages, places[u].page, places[u].row), lane);
        }
#pragma unroll
        for (int u = 0; u < DSV_UNROLL; ++u) {
            if (first + u * stride >= count) continue;
#pragma unroll
            for (int c = 0; c < kChunksPerLane; ++c) {
                int chunk = lane + c * kWarpSize;
                u8* target = out + (i64)wanted[u].row * (DSV_DIMS * 2) + chunk * 16;
                if (chunk < kChunks) dsv_store(target, decode_chunk(entries[u], c, lane));
            }
        }
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

// Chosen entries: out bf16[requests, choices, DSV_DIMS]. slots, lengths: int64[requests];
// indices: int32[requests, choices], logical.
DSV_KERNEL void __launch_bounds__(256, 4)
    gather_topk(const u8* pages, const int* blocks, const i64* slots, const int* indices,
                const i64* lengths, u8* out, int requests, int choices, int num_slots, int width,
                i64 num_pages) {
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
    auto read = [&](u32 i) { return Wanted{0, 0, entries[i], i}; };
    auto find = [&](const Wanted& wanted) {
        int page = wanted.index < 0 ? -1 : wanted.index / DSV_ENTRIES;
        return place_in(page, wanted.index % DSV_ENTRIES, num_pages);
    };
    gather(pages, out, count, read, find);
}

// The last min(tokens, window) rows of each ring, oldest first, zeros after: out bf16[requests,
// window, DSV_DIMS]. A ring is one page, row = position mod DSV_ENTRIES. slots, tokens:
// int64[requests], tokens of each request so far.
DSV_KERNEL void __launch_bounds__(256, 4)
    gather_window(const u8* pages, const i64* slots, const i64* tokens, u8* out, int requests,
                  int window, i64 num_slots) {
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
