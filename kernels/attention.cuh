// Attention of query tokens over the window and compressed entries, read in their pages: what its
// kernels share. An entry is key and value of every head; which entries there are is looked up here.
//
// Compile-time: DSV_HEADS, DSV_TILE; DSV_CLUSTER blocks that take the same tiles, each for a group of
// heads of its own, are a cluster; format.cuh's parameters of the window (DSV_WINDOW_...) and, where
// DSV_COMPRESSED is 1, of the compressed entries (DSV_MAIN_...); DSV_CHOSEN 1 where those are named by
// indices.
#pragma once
#include "async.cuh"
#include "softmax.cuh"

// Where an entry is stored.
struct Stored {
    const u8 *data, *scales;
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
constexpr int kHeads = DSV_HEADS, kTile = DSV_TILE, kCluster = DSV_CLUSTER;

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

// Tiles of a token: of the window, at least one, and all. Of the window `rows` entries count, the oldest
// of which is in place `first` of its ring; of the compressed ones those before `length`.
struct Tiles {
    int window, all, rows, first, length;
};
__device__ __forceinline__ i64 length_of(const Others& others, i64 slot, int token) {
#if DSV_COMPRESSED
    i64 most = (i64)others.width * compressed::kEntries, length = slot < 0 ? 0 : others.lengths[token];
    return length < 0 ? 0 : length < most ? length : most;
#else
    return 0 * (others.width + slot + token);
#endif
}
__device__ __forceinline__ Tiles tiles_of(const Window& window, const Others& others, i64 given,
                                          int token) {
    int slot = given == int(given) ? int(given) : -1;
    i64 seen = slot < 0 ? 0 : window.tokens[token];
    int rows = seen < 0 ? 0 : seen < window.size ? int(seen) : window.size;
    int length = int(length_of(others, slot, token)), count = DSV_CHOSEN && length ? others.choices : length;
    int own = max(1, (rows + kTile - 1) / kTile);
    int first = rows ? int((seen - rows) % window::kEntries) : 0;
    return {own, own + (count + kTile - 1) / kTile, rows, first, length};
}

// The tiles of all tokens make one list: a token's groups of heads one after another, of each its
// tiles; of a cluster's groups all together. Blocks, or clusters, take equal runs of it, so a block
// begins and ends anywhere within a token.
struct Run {
    int token, at, left;  // where it goes on: tile of the token's in the list, and tiles left
    int done;             // tiles before
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

// Of its cluster's groups of heads, a block has this one, which the last cluster may lack.
__device__ __forceinline__ int cluster_group() { return kCluster > 1 ? int(blockIdx.y) : 0; }
__device__ __forceinline__ int clusters_of(int groups) { return (groups + kCluster - 1) / kCluster; }

// This block's run; all lanes of a warp ask.
__device__ __forceinline__ Run run_of(const Window& window, const Others& others, const i64* slots,
                                      int tokens, int groups) {
    auto count = [&](int token) {
        return token < tokens ? clusters_of(groups) * tiles_of(window, others, slots[token], token).all : 0;
    };
    int total = 0;
#pragma unroll 2
    for (int t = lane_id(); t < tokens; t += kWarpSize) total += count(t);
    total = sum_lanes(total);
    int length = (total + gridDim.x - 1) / gridDim.x;
    int first = min(length * int(blockIdx.x), total), before = 0;
    int part = 2 * (cluster_group() * int(gridDim.x) + int(blockIdx.x));
    Run run = {0, 0, min(length, total - first), 0, length, part, groups};
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
    int own = group * kCluster + cluster_group();
    Piece piece = {run.token, own, first, last, run.part, slot, tiles};
    run.left -= last - first, run.at += last - first, run.done += last - first, run.part |= 1;
    if (run.at == clusters_of(run.groups) * tiles.all) ++run.token, run.at = 0;
    return piece;
}

// Where a piece's entries are, in three steps: what one of them loads is on its way to the next, which
// can be taken a tile later.
struct Search {
    const Window& window;
    const Others& others;
    const Piece& piece;
    int window_tiles, last;  // of the piece

    // Which one of the window, oldest first, or of the compressed ones entry i of a tile is; or -1.
    __device__ __forceinline__ int number(int tile, int i) const {
        if (tile >= last) return -1;
        const Tiles& tiles = piece.tiles;
        bool own = tile < window_tiles;
        int at = (own ? tile : tile - window_tiles) * kTile + i;
        if (DSV_CHOSEN && !own) {
            return at < others.choices ? others.indices[(i64)piece.token * others.choices + at] : -1;
        }
        return at < (own ? tiles.rows : tiles.length) ? at : -1;
    }

    // Its page, as the table has it, or -1; and its row there.
    struct Found {
        int page, row;
    };
    __device__ __forceinline__ Found page(int tile, int number) const {
        const Tiles& tiles = piece.tiles;
        if (tile < window_tiles) {
            return {number < 0 ? -1 : piece.slot, (tiles.first + number) % window::kEntries};
        }
#if DSV_COMPRESSED
        bool there = number >= 0 && number < tiles.length && piece.slot < others.num_slots;
        i64 at = (i64)piece.slot * others.width + number / compressed::kEntries;
        return {there ? others.table[at] : -1, number % compressed::kEntries};
#else
        return {-1, 0};
#endif
    }

    // Physical entry, -1 for none.
    __device__ __forceinline__ int entry(int tile, const Found& found) const {
        bool own = tile < window_tiles;
        bool there = found.page >= 0 && found.page < (own ? window.num_slots : others.num_pages);
#if DSV_COMPRESSED
        int entries = own ? window::kEntries : compressed::kEntries;
#else
        int entries = window::kEntries;
#endif
        return there ? found.page * entries + found.row : -1;
    }
};

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
    if (piece.first || (kCluster > 1 && piece.group >= kept.run.groups)) return;
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
