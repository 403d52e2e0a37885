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

// Tiles of a token: of the window, at least one, and all.
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
    int own = max(1, (rows + kTile - 1) / kTile);
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

// The tiles of all tokens make one list: a token's groups of heads one after another, of each its
// tiles. Blocks take equal runs of it, so a block begins and ends anywhere within a token.
struct Run {
    int token, at, left;  // where it goes on: tile of the token's in the list, and tiles left
    int length;           // of every block's run; the last ones are shorter, or have nothing
    int part;             // where sums of a part of a token go
    int groups;           // of heads
};
// What a block does of one token and group of heads: tiles first ... last - 1.
struct Piece {
    int token, group, first, last, part, slot;
    Tiles tiles;
};

// In shared memory while tiles are worked on, for registers are few.
struct Kept {
    Run run;
    Piece piece;
};

// This block's run; all lanes of a warp ask.
__device__ __forceinline__ Run run_of(const Window& window, const Others& others, const i64* slots,
                                      int tokens, int groups) {
    auto count = [&](int token) {
        return token < tokens ? groups * tiles_of(window, others, slots[token], token).all : 0;
    };
    int total = 0;
#pragma unroll 2
    for (int t = lane_id(); t < tokens; t += kWarpSize) total += count(t);
    total = sum_lanes(total);
    int length = (total + gridDim.x - 1) / gridDim.x;
    int first = min(length * int(blockIdx.x), total), before = 0;
    Run run = {0, 0, min(length, total - first), length, 2 * int(blockIdx.x), groups};
#pragma unroll 1
    for (int t = 0; run.left > 0; t += kWarpSize) {
        int own = count(t + lane_id()), end = before + scan_lanes(own);
        u32 later = __ballot_sync(kFullWarp, end > first);
        if (later) {
            int lane = __popc((later & -later) - 1);
            run.token = t + lane, run.at = first - __shfl_sync(kFullWarp, end - own, lane);
            break;
        }
        before = __shfl_sync(kFullWarp, end, kWarpSize - 1);
    }
    return run;
}

// A number as if it were another one for each piece: or all that is worked out of it would be kept in
// registers from one to the next.
__device__ __forceinline__ int anew(int number) {
#if !defined(DSV_SHIM)
    asm volatile("" : "+r"(number));
#endif
    return number;
}

__device__ __forceinline__ Piece next_piece(Run& run, const Window& window, Others others,
                                            const i64* slots) {
    others.choices = anew(others.choices);
    i64 given = slots[run.token];
    int slot = given == int(given) ? int(given) : -1;
    Tiles tiles = tiles_of(window, others, slot, run.token);
    int group = run.at / tiles.all, first = run.at - group * tiles.all;
    int last = min(tiles.all, first + run.left);
    Piece piece = {run.token, group, first, last, run.part, slot, tiles};
    run.left -= last - first, run.at += last - first, run.part |= 1;
    if (run.at == run.groups * tiles.all) ++run.token, run.at = 0;
    return piece;
}

// Of a token and group of heads whose tiles several blocks have: where the first one's sums are, and
// how many there are; the others' are those of the blocks that follow. None where one block has all.
struct Parts {
    int first, count;
};

// Outputs, and where blocks that have a part of a token leave what they found: two places for each
// block, sums float32[2 * blocks, kHeads, 512] and results [2 * blocks, kHeads].
struct Outputs {
    u8* out;     // bf16[tokens, heads, 512]
    float* lse;  // [tokens, heads]
    float* sums;
    Result* results;
    Parts* parts;  // [tokens, groups]
};

// By one thread of a block.
__device__ __forceinline__ void store_parts(const Outputs& outputs, const Kept& kept) {
    const Piece& piece = kept.piece;
    if (piece.first) return;
    int rest = piece.tiles.all - piece.last;
    Parts parts = {piece.part, rest ? 1 + (rest + kept.run.length - 1) / kept.run.length : 0};
    outputs.parts[(i64)piece.token * kept.run.groups + piece.group] = parts;
}

__device__ __forceinline__ bool has_all(const Piece& piece) {
    return piece.first == 0 && piece.last == piece.tiles.all;
}

// Where one head of a token is left: as output where a block has all of the token's tiles, or in part.
template <bool kAll>
struct HeadOut {
    u8* to;
    float share;  // by what sums are multiplied

    // one: of those threads that have the head's sums the one that leaves what else is said of it.
    __device__ __forceinline__ HeadOut(const Outputs& outputs, const Queries& queries,
                                       const Piece& piece, int row, const Result& result, bool one) {
        int head = piece.group * kHeads + row;
        i64 at = kAll ? (i64)piece.token * queries.heads + head : (i64)piece.part * kHeads + row;
        if constexpr (kAll) {
            to = outputs.out + at * kDims * 2;
            share = share_of(result, queries.sinks[head]);
            if (one) outputs.lse[at] = lse_of(result);
        } else {
            to = (u8*)(outputs.sums + at * kDims);
            if (one) outputs.results[at] = result;
        }
    }
    __device__ __forceinline__ void store_pair(int channel, float first, float second) const {
        if constexpr (kAll) {
            dsv_write(to + channel * 2, pack_bf16(first * share, second * share));
        } else {
            dsv_write(to + channel * 4, make_uint2(__float_as_uint(first), __float_as_uint(second)));
        }
    }
};
