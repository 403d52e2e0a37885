// Attention as attend.cuh, by warps of two roles: four decode entries while eight multiply.
//
// A block takes 64 heads of a token at a time, and of the token's tiles of 64 entries those of its run
// (attention.cuh); decoding warps are ahead of multiplying ones from one token to the next. Each decoding
// warp has a stream of entries of its own, of which DSV_STAGES are on their way; it decodes them, to
// bf16, to one of two tiles in shared memory. Two warpgroups multiply: each of them its half of a
// tile's entries with all channels, then all entries with its half of the channels, both by wgmma from
// shared memory. A head's sums stay with one warp of each.
//
// Compile-time: see attention.cuh; DSV_STAGES 4 or 8.
#include "attention.cuh"
#include "warpgroup.cuh"

constexpr int kGroups = 2, kMultiplying = kGroups * kGroupThreads;
constexpr int kDecodingWarps = 4, kThreads = kMultiplying + kDecodingWarps * kWarpSize;
constexpr int kStages = DSV_STAGES, kOwnRows = kTile / kDecodingWarps;
constexpr int kPanels = kDims / 64, kOwnPanels = kPanels / kGroups;
constexpr int kOwnEntries = kTile / 8 / kGroups, kOwnDims = kDimChunks / kGroups;
constexpr int kPanelBytes = kTile * kPanelRow;
constexpr int kMultiplyingRegisters = 208, kDecodingRegisters = 88;

static_assert(kHeads == 64 && kTile == 64, "as wgmma multiplies");
static_assert(kOwnRows % kStages == 0 && kStages % 2 == 0, "a tile begins with the first stage");

// Barriers of the block; of each of two tiles.
enum { kTogether = 1, kDecoded = 2, kFree = 4 };

struct Shared {
    uint4 queries[kPanels][kHeads][8];
    uint4 entries[2][kPanels][kTile][8];
    uint4 weights[kHeads][8];
    u8 staged[kDecodingWarps][kStages][kStagedBytes];
    float tops[kGroups][kHeads];
    int there[2][kTile];  // physical entries of each tile
    Kept kept, of_warps[kDecodingWarps];
};
static_assert(sizeof(Shared) <= DSV_SHARED_BYTES, "a launch gives it so much");

// Starts copies of a token's heads; zeros for heads that fill up.
__device__ __forceinline__ void copy_queries(const Queries& queries, int token, int first_head,
                                             Shared& shared) {
    for (int i = threadIdx.x; i < kHeads * kDimChunks; i += kMultiplying) {
        int row = i / kDimChunks, chunk = i % kDimChunks, head = first_head + row;
        bool there = head < queries.heads;
        i64 at = (i64)token * queries.heads + (there ? head : 0);
        copy_async<16>(&shared.queries[chunk / 8][row][panel_place(row, chunk % 8)],
                       queries.values + (at * kDimChunks + chunk) * 16, there);
    }
}

// ---- Decoding ---------------------------------------------------------------------------------

// Where the entries of a token are, and which tiles of them this block has.
struct Source {
    const Window& window;
    const Others& others;
    const Piece& piece;
    int window_tiles, first, last;
};

// An entry of a tile: which physical one, -1 for none, and where it is. A lane looks one up for all.
struct Found {
    int entry;
    Stored at;
};
__device__ __forceinline__ Found find_entry(const Source& source, int tile, int i) {
    if (tile >= source.last) return {-1, {source.window.pages, 0}};
    const Window& window = source.window;
#if DSV_COMPRESSED
    if (tile >= source.window_tiles) {
        int number = (tile - source.window_tiles) * kTile + i;
        int entry = find_compressed(source.others, source.piece.slot, source.piece.token, number);
        return {entry, compressed::Staged::place(source.others.pages, entry)};
    }
#endif
    int entry = find_in_window(window, source.piece.slot, source.piece.token, tile * kTile + i);
    return {entry, window::Staged::place(window.pages, entry)};
}
__device__ __forceinline__ Found of_lane(const Found& found, int lane) {
    u64 data = (u64)found.at.data;
    u32 low = __shfl_sync(kFullWarp, u32(data), lane), high = __shfl_sync(kFullWarp, u32(data >> 32), lane);
    return {__shfl_sync(kFullWarp, found.entry, lane),
            {(const u8*)(high * (1ull << 32) + low), __shfl_sync(kFullWarp, found.at.scales, lane)}};
}

// Starts copies of two entries of a tile.
__device__ __forceinline__ void stage_two(const Source& source, int tile, const Found* found,
                                          u32 staged) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        bool there = found[i].entry >= 0;
        if (tile < source.window_tiles) {
            window::Staged::stage(found[i].at, there, staged + i * kStagedBytes);
#if DSV_COMPRESSED
        } else {
            compressed::Staged::stage(found[i].at, there, staged + i * kStagedBytes);
#endif
        }
    }
}

// Decodes the next two entries of this warp's stream to rows of a tile, and starts copies of those
// that take their places, which are of tile `later`.
template <typename Part>
__device__ __forceinline__ void decode_two(const Source& source, int row, int later, const Found* next,
                                           const u8 (*staged)[kStagedBytes], uint4 (*tile)[kTile][8]) {
    wait_copies<kStages / 2 - 1>();
    __syncwarp();
    typename Part::Loaded loaded[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) loaded[i] = Part::load(staged[i]);
    __syncwarp();  // nobody reads what is copied over
    if (later < source.last) stage_two(source, later, next, shared_address(staged));
    close_copies();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        int own = row + i * kDecodingWarps;
        Part::decode(loaded[i], [&](int chunk, uint4 values) {
            tile[chunk / 8][own][panel_place(own, chunk % 8)] = values;
        });
    }
}

// count: tiles that this block has decoded before.
__device__ __forceinline__ void decode_tiles(const Source& source, int count, int warp,
                                             Shared& shared) {
    u8(*staged)[kStagedBytes] = shared.staged[warp];
    auto find = [&](int tile) {  // lane i looks up this warp's entry i
        return find_entry(source, tile, lane_id() % kOwnRows * kDecodingWarps + warp);
    };
    Found own = find(source.first), next = find(source.first + 1);
#pragma unroll 1
    for (int i = 0; i < kStages; i += 2) {
        Found two[2] = {of_lane(own, i), of_lane(own, i + 1)};
        if (source.first < source.last) {
            stage_two(source, source.first, two, shared_address(staged[i]));
        }
        close_copies();
    }
#pragma unroll 1
    for (int tile = source.first; tile < source.last; ++tile) {
        int number = count + tile - source.first, half = number & 1;
        if (number >= 2) sync_threads(kFree + half, kThreads);
        if (lane_id() < kOwnRows) shared.there[half][lane_id() * kDecodingWarps + warp] = own.entry;
#pragma unroll 1
        for (int i = 0; i < kOwnRows; i += 2) {
            int ahead = i + kStages, row = i * kDecodingWarps + warp;
            bool same = ahead < kOwnRows;
            int later = same ? tile : tile + 1;
            Found from = {same ? own.entry : next.entry,
                          {same ? own.at.data : next.at.data, same ? own.at.scales : next.at.scales}};
            Found two[2] = {of_lane(from, ahead % kOwnRows), of_lane(from, (ahead + 1) % kOwnRows)};
            const u8(*here)[kStagedBytes] = staged + i % kStages;
            if (tile < source.window_tiles) {
                decode_two<window::Staged>(source, row, later, two, here, shared.entries[half]);
#if DSV_COMPRESSED
            } else {
                decode_two<compressed::Staged>(source, row, later, two, here, shared.entries[half]);
#endif
            }
        }
        show_to_products();
        arrive_threads(kDecoded + half, kThreads);
        own = next, next = find(tile + 2);
    }
    wait_copies<0>();
}

// ---- Multiplying ------------------------------------------------------------------------------

// Of this lane's two heads: largest logarithm so far, and sum of weights of its own entries.
struct Softmax {
    float top[2], sum[2];
};

// This warp's heads: rows 16 w + g of the group's, and 8 more.
__device__ __forceinline__ int head_row(int half) {
    return threadIdx.x / kWarpSize % 4 * 16 + half * 8 + lane_id() / 4;
}

using Logarithms = float[kOwnEntries][4];
using Sums = float[kOwnDims][4];

__device__ __forceinline__ void multiply_keys(const Shared& shared, int half, int group,
                                              Logarithms& sums) {
    u64 heads = matrix_at(shared.queries, 0);
    u64 entries = matrix_at(shared.entries[half][0][group * kTile / kGroups], 0);
    begin_products();
#pragma unroll
    for (int i = 0; i < kDims / 16; ++i) {  // channels
        int at = i / 4 * kPanelBytes + i % 4 * 32;
        multiply_group<kTile / kGroups, false>(sums, further(heads, at), further(entries, at));
    }
    end_products();
}

// Scales logarithms, -infinity where there is no entry, and writes this group's largest.
__device__ __forceinline__ void share_tops(Logarithms& sums, float scale, int half, int group,
                                           Shared& shared) {
    const int* there = shared.there[half] + group * kOwnEntries * 8 + lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kOwnEntries; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sums[n][i] = there[n * 8 + i % 2] >= 0 ? sums[n][i] * scale : minus_infinity();
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float top = minus_infinity();
#pragma unroll
        for (int n = 0; n < kOwnEntries; ++n) {
            top = fmaxf(top, fmaxf(sums[n][2 * h], sums[n][2 * h + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
        if (lane_id() % 4 == 0) shared.tops[group][head_row(h)] = top;
    }
}

// Turns logarithms into weights, as bf16 for the tensor cores; rescale is by what to scale what has
// been summed up so far.
__device__ __forceinline__ void share_weights(const Logarithms& sums, int group, Softmax& softmax,
                                              float* rescale, Shared& shared) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int row = head_row(h);
        float before = softmax.top[h], top = before;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) top = fmaxf(top, shared.tops[g][row]);
        rescale[h] = weight_of(before, top);
        float sum = softmax.sum[h] * rescale[h];
#pragma unroll
        for (int n = 0; n < kOwnEntries; ++n) {
            float first = weight_of(sums[n][2 * h], top);
            float second = weight_of(sums[n][2 * h + 1], top);
            sum += first + second;
            u32* words = (u32*)&shared.weights[row][panel_place(row, group * kOwnEntries + n)];
            words[lane_id() % 4] = pack_bf16(first, second);
        }
        softmax.top[h] = top, softmax.sum[h] = sum;
    }
}

__device__ __forceinline__ void add_values(const Shared& shared, int half, int group,
                                           const float* rescale, Sums& sums) {
    bool same = rescale[0] == 1.0f && rescale[1] == 1.0f;
    if (__ballot_sync(kFullWarp, !same)) {
#pragma unroll
        for (int n = 0; n < kOwnDims; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[n][i] *= rescale[i / 2];
        }
    }
    u64 weights = matrix_at(shared.weights, 0);
    u64 entries = matrix_at(shared.entries[half][group * kOwnPanels], kPanelBytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {  // entries
        multiply_group<kOwnDims * 8, true>(sums, further(weights, i * 32),
                                           further(entries, i * 16 * kPanelRow));
    }
    end_products();
}

template <bool kAll>
__device__ __forceinline__ void store_heads(const Queries& queries, const Outputs& outputs,
                                            const Piece& piece, int group, const Softmax& softmax,
                                            const Sums& sums, const Shared& shared) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int row = head_row(h);
        if (piece.group * kHeads + row >= queries.heads) continue;
        Result result = {softmax.top[h], shared.tops[0][row] + shared.tops[1][row]};
        bool one = group == 0 && lane_id() % 4 == 0;
        HeadOut<kAll> out(outputs, queries, piece, row, result, one);
#pragma unroll
        for (int n = 0; n < kOwnDims; ++n) {
            int channel = (group * kOwnDims + n) * 8 + lane_id() % 4 * 2;
            out.store_pair(channel, sums[n][2 * h], sums[n][2 * h + 1]);
        }
    }
}

__device__ __forceinline__ void store_sums(const Queries& queries, const Outputs& outputs,
                                           Kept& kept, int group, const Softmax& softmax,
                                           const Sums& sums, Shared& shared) {
    int lane = lane_id();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = softmax.sum[h];
        sum += __shfl_xor_sync(kFullWarp, sum, 1);
        sum += __shfl_xor_sync(kFullWarp, sum, 2);
        if (lane % 4 == 0) shared.tops[group][head_row(h)] = sum;
    }
    kept = shared.kept;
    sync_threads(kTogether, kMultiplying);
    if (has_all(kept.piece)) {
        store_heads<true>(queries, outputs, kept.piece, group, softmax, sums, shared);
    } else {
        store_heads<false>(queries, outputs, kept.piece, group, softmax, sums, shared);
    }
}

// See contract.Backend.attend.
__device__ __forceinline__ void attend_run(Run run, const i64* slots, const Window& window,
                                           const Others& others, const Queries& queries,
                                           const Outputs& outputs, Shared& shared) {
    int group = threadIdx.x / kGroupThreads;
    int count = 0, all = run.left;
    if (group == kGroups) {
        give_registers<kDecodingRegisters>();
        int warp = threadIdx.x / kWarpSize % kDecodingWarps;
        Kept& kept = shared.of_warps[warp];
#pragma unroll 1
        while (run.left > 0) {
            Piece piece = next_piece(run, window, others, slots);
            if (lane_id() == 0) kept = {run, piece};
            __syncwarp();
            Source source = {window, others, kept.piece, piece.tiles.window, piece.first, piece.last};
            decode_tiles(source, count, warp, shared);
            run = kept.run, count += kept.piece.last - kept.piece.first;
            __syncwarp();
        }
        return;
    }
    take_registers<kMultiplyingRegisters>();
    Kept kept = {run, {}};
#pragma unroll 1
    while (kept.run.left > 0) {
        Piece& piece = kept.piece;
        piece = next_piece(kept.run, window, others, slots);
        if (threadIdx.x == 0) {
            store_parts(outputs, kept);
            shared.kept = kept;
        }
        copy_queries(queries, piece.token, piece.group * kHeads, shared);
        close_copies();
        wait_copies<0>();
        show_to_products();
        sync_threads(kTogether, kMultiplying);
        Softmax softmax = {{minus_infinity(), minus_infinity()}, {0.0f, 0.0f}};
        Sums sums = {};
#pragma unroll 1
        for (int end = count + piece.last - piece.first; count < end; ++count) {
            int half = count & 1;
            float rescale[2];
            Logarithms logarithms = {};
            sync_threads(kDecoded + half, kThreads);
            multiply_keys(shared, half, group, logarithms);
            share_tops(logarithms, queries.scale, half, group, shared);
            sync_threads(kTogether, kMultiplying);
            share_weights(logarithms, group, softmax, rescale, shared);
            show_to_products();
            sync_threads(kTogether, kMultiplying);
            add_values(shared, half, group, rescale, sums);
            if (count + 2 < all) arrive_threads(kFree + half, kThreads);
        }
        store_sums(queries, outputs, kept, group, softmax, sums, shared);
    }
}

#include "attend_kernel.cuh"
