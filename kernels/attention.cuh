// Attention of query tokens over the window and compressed entries, read in their pages: what its
// kernels share. An entry is key and value of every head; which entries there are is looked up here.
//
// Compile-time: DSV_HEADS, DSV_TILE; format.cuh's parameters of the window (DSV_WINDOW_...) and, where
// DSV_COMPRESSED is 1, of the compressed entries (DSV_MAIN_...); DSV_CHOSEN 1 where those are named by
// indices.
#pragma once
#include "async.cuh"
#include "softmax.cuh"

// Where an entry is stored: its data row, and how much further on its scales are.
struct Stored {
    const u8* data;
    int scales;
};

namespace window {
#define DSV_PART WINDOW
#include "parts.cuh"
#include "staged.cuh"
constexpr int kEntries = DSV_ENTRIES;
static_assert(DSV_DIMS == 512, "a warp has 2 chunks a lane");
#undef DSV_PART
}  // namespace window

#if DSV_COMPRESSED
namespace compressed {
#define DSV_PART MAIN
#include "parts.cuh"
#include "staged.cuh"
constexpr int kEntries = DSV_ENTRIES;
static_assert(DSV_DIMS == 512, "a warp has 2 chunks a lane");
#undef DSV_PART
}  // namespace compressed
constexpr int kStagedBytes = window::kStagedBytes > compressed::kStagedBytes
                                 ? window::kStagedBytes
                                 : compressed::kStagedBytes;
#else
constexpr int kStagedBytes = window::kStagedBytes;
#endif

constexpr int kDims = 512, kDimChunks = kDims / 8;
constexpr int kHeads = DSV_HEADS, kTile = DSV_TILE;

struct Window {
    const u8* pages;
    const i64* tokens;  // of each query token, this one counted
    i64 num_slots;
    int size;
};
struct Others {
    const u8* pages;
    const int* table;  // [num_slots, width]
    const i64* lengths;
    const int* indices;  // [tokens, choices], or null
    int num_slots, width, choices;
    i64 num_pages;
};
struct Queries {
    const u8* values;    // bf16[tokens, heads, 512]
    const float* sinks;  // [heads]
    int heads;
    float scale;  // of what 2 is raised to
};

// Tiles of a token: of the window, and all.
struct Tiles {
    int window, all;
};
__device__ __forceinline__ i64 length_of(const Others& others, i64 slot, int token) {
#if DSV_COMPRESSED
    i64 most = (i64)others.width * compressed::kEntries, length = slot < 0 ? 0 : others.lengths[token];
    return length < 0 ? 0 : length < most ? length : most;
#else
    return 0 * (others.width + slot + token);
#endif
}
__device__ __forceinline__ Tiles tiles_of(const Window& window, const Others& others, i64 slot,
                                          int token) {
    i64 seen = slot < 0 ? 0 : window.tokens[token];
    int rows = seen < 0 ? 0 : seen < window.size ? int(seen) : window.size;
    i64 length = length_of(others, slot, token);
    int count = DSV_CHOSEN ? (length ? others.choices : 0) : int(length);
    int own = (rows + kTile - 1) / kTile;
    return {own, own + (count + kTile - 1) / kTile};
}

// Physical entry number i of the window, oldest first; -1 where there is none.
__device__ __forceinline__ int find_in_window(const Window& window, i64 slot, int token, int i) {
    if (slot < 0 || slot >= window.num_slots || i >= window.size) return -1;
    i64 seen = window.tokens[token], first = seen > window.size ? seen - window.size : 0;
    i64 position = first + i;
    if (position >= seen) return -1;
    return int(slot * window::kEntries + position % window::kEntries);
}
__device__ __forceinline__ int find_compressed(const Others& others, i64 slot, int token, int i) {
#if DSV_COMPRESSED
    i64 index = i;
    if (DSV_CHOSEN) index = i < others.choices ? others.indices[(i64)token * others.choices + i] : -1;
    if (index < 0 || index >= length_of(others, slot, token) || slot >= others.num_slots) return -1;
    int page = others.table[slot * others.width + index / compressed::kEntries];
    if (page < 0 || page >= others.num_pages) return -1;
    return page * compressed::kEntries + int(index % compressed::kEntries);
#else
    return -1 + 0 * (others.width + int(slot) + token + i);
#endif
}

// Outputs, and where blocks that share a token leave what they found: sums float32[tokens, blocks,
// heads, 512] and results [tokens, blocks, heads].
struct Outputs {
    u8* out;     // bf16[tokens, heads, 512]
    float* lse;  // [tokens, heads]
    float* sums;
    Result* results;
};

// Where one head of a token is to be left, and by what its sums are multiplied.
struct HeadOut {
    const Outputs& outputs;
    i64 at, part;
    float share;
    bool all;

    // By one thread of those that have the head's sums: what else is said of it.
    __device__ __forceinline__ void store_result(const Result& result) const {
        if (all) outputs.lse[at] = lse_of(result);
        if (!all) outputs.results[part] = result;
    }
    __device__ __forceinline__ void store_pair(int channel, float first, float second) const {
        if (all) {
            u32 pair = pack_bf16(first * share, second * share);
            dsv_write(outputs.out + (at * kDims + channel) * 2, pair);
        } else {
            uint2 pair = make_uint2(__float_as_uint(first), __float_as_uint(second));
            dsv_write(outputs.sums + part * kDims + channel, pair);
        }
    }
};
__device__ __forceinline__ HeadOut out_of(const Outputs& outputs, const Queries& queries, int token,
                                          int head, const Result& result) {
    i64 at = (i64)token * queries.heads + head;
    i64 part = ((i64)token * gridDim.y + blockIdx.y) * queries.heads + head;
    return {outputs, at, part, share_of(result, queries.sinks[head]), gridDim.y == 1};
}
