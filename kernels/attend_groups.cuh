// Attention as attend.cuh, by warps of two roles: eight decode entries while eight multiply.
//
// A block takes 64 heads of a token at a time, and of the token's tiles of 64 entries those of its run
// (attention.cuh); decoding warps are ahead of multiplying ones from one token to the next. Each decoding
// warp has a stream of entries of its own, of which DSV_STAGES are on their way; it decodes them, to
// bf16, to one of two tiles in shared memory. Two warpgroups multiply: each of them its half of a
// tile's entries with all channels, then all entries with its half of the channels, both by wgmma from
// shared memory. A head's sums stay with one warp of each.
//
// Two blocks of a cluster take the same tiles, each for 64 heads of its own: each decodes half of a tile's
// entries and sends them to the other, too. They multiply keys of the next tile right behind values of this
// one.
//
// Compile-time: see attention.cuh, DSV_CLUSTER 1 or 2; DSV_STAGES 2 or 4.
#include "attention.cuh"
#include "cluster.cuh"
#include "warpgroup.cuh"

constexpr int kGroups = 2, kMultiplying = kGroups * kGroupThreads;
constexpr int kDecodingWarps = 8, kThreads = kMultiplying + kDecodingWarps * kWarpSize;
constexpr int kDecoders = kCluster * kDecodingWarps;  // of a tile
constexpr int kStages = DSV_STAGES, kOwnRows = kTile / kDecoders;
constexpr int kPanels = kDims / 64, kOwnPanels = kPanels / kGroups;
constexpr int kOwnEntries = kTile / 8 / kGroups, kOwnDims = kDimChunks / kGroups;
constexpr int kPanelBytes = kTile * kPanelRow;
constexpr bool kPair = kCluster == 2;
constexpr int kMultiplyingRegisters = kPair ? 176 : 184, kDecodingRegisters = 256 - kMultiplyingRegisters;
constexpr u32 kSentBytes = kTile / 2 * (kDims * 2 + 4);  // of a tile, to each block of a pair

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
    ByteBarrier sent[2], free[2];  // of a pair, of each tile: from the other block; to both
};
static_assert(sizeof(Shared) <= DSV_SHARED_BYTES, "a launch gives it so much");

// Starts copies of a token's heads; zeros for heads that fill up.
__device__ __forceinline__ void copy_queries(const Queries& queries, int token, int first_head,
                                             Shared& shared) {
    int thread = anew(threadIdx.x);
#pragma unroll 4
    for (int first = 0; first < kHeads * kDimChunks; first += kMultiplying) {
        int i = first + thread, row = i / kDimChunks, chunk = i % kDimChunks, head = first_head + row;
        bool there = head < queries.heads;
        i64 at = (i64)token * queries.heads + (there ? head : 0);
        copy_async<16>(&shared.queries[chunk / 8][row][panel_place(row, chunk % 8)],
                       queries.values + (at * kDimChunks + chunk) * 16, there);
    }
}

// ---- Decoding ---------------------------------------------------------------------------------

// Starts copies of an entry of a tile.
__device__ __forceinline__ void stage_entry(const Search& search, int tile, int entry, u32 staged) {
    if (tile < search.window_tiles) {
        window::Staged::stage(window::Staged::place(search.window.pages, entry), entry >= 0, staged);
#if DSV_COMPRESSED
    } else {
        compressed::Staged::stage(compressed::Staged::place(search.others.pages, entry), entry >= 0, staged);
#endif
    }
}

// To its place in a tile, and in that of the other block.
template <typename T>
__device__ __forceinline__ void store_decoded(T* place, T value, int half, Shared& shared) {
    *place = value;
    if constexpr (kPair) {
        u32 other = address_at(&shared, 1 - cluster_group());
        auto there = [&](const void* here) { return other + u32((u8*)here - (u8*)&shared); };
        send(there(place), value, there(&shared.sent[half]));
    }
}

// Decodes the next two entries of this warp's stream to rows of a tile, and starts copies of those
// that take their places, which are of tile `later`.
template <typename Part>
__device__ __forceinline__ void decode_two(const Search& search, int row, int later, const int* next,
                                           const u8 (*staged)[kStagedBytes], u32 copied, int half,
                                           Shared& shared) {
    wait_copies<kStages / 2 - 1>();
    __syncwarp();
    typename Part::Loaded loaded[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) loaded[i] = Part::load(staged[i]);
    __syncwarp();  // nobody reads what is copied over
    for (int i = 0; i < 2 && later < search.last; ++i) {
        stage_entry(search, later, next[i], copied + i * kStagedBytes);
    }
    close_copies();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        int own = row + i * kDecoders;
        Part::decode(loaded[i], [&](int chunk, uint4 values) {
            uint4* place = &shared.entries[half][chunk / 8][own][panel_place(own, chunk % 8)];
            store_decoded(place, values, half, shared);
        });
    }
}

// Of this block's tiles, which are counted: waits until one is decoded; says that its place is free; waits
// until a place is.
__device__ __forceinline__ void wait_decoded(int count, Shared& shared) {
    sync_threads(kDecoded + (count & 1), kThreads);
    if constexpr (kPair) {
        wait_turn(&shared.sent[count & 1], count >> 1);
        show_to_products();
    }
}
__device__ __forceinline__ void free_tile(int count, Shared& shared) {
    if constexpr (kPair) {
        if (lane_id() < 2) arrive_at(address_at(&shared.free[count & 1], lane_id()));
    } else {
        arrive_threads(kFree + (count & 1), kThreads);
    }
}
__device__ __forceinline__ void wait_free(int count, Shared& shared) {
    if constexpr (kPair) {
        wait_turn(&shared.free[count & 1], (count >> 1) - 1);
    } else {
        sync_threads(kFree + (count & 1), kThreads);
    }
}

// Of a piece's tiles; `before`: how many this block has decoded before.
__device__ __forceinline__ void decode_tiles(const Search& search, int first, int before, int warp,
                                             Shared& shared) {
    u8(*staged)[kStagedBytes] = shared.staged[warp];
    u32 copies = shared_address(staged);
    int decoder = cluster_group() * kDecodingWarps + warp;
    int row = lane_id() % kOwnRows * kDecoders + decoder;  // lane i looks up this warp's entry i
    auto find = [&](int tile) { return search.page(tile, search.number(tile, row)); };
    int own = search.entry(first, find(first)), next = search.entry(first + 1, find(first + 1));
    Search::Found found = find(first + 2);
    int number = search.number(first + 3, row);
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
        stage_entry(search, first, __shfl_sync(kFullWarp, own, i), copies + i * kStagedBytes);
        if (i % 2) close_copies();
    }
#pragma unroll 1
    for (int tile = first; tile < search.last; ++tile, ++before) {
        int half = before & 1;
        if (before >= 2) wait_free(before, shared);
        if (kPair && decoder % kDecodingWarps + lane_id() == 0) {
            expect_bytes(&shared.sent[half], 1, kSentBytes);
        }
        if (lane_id() < kOwnRows) store_decoded(&shared.there[half][row], own, half, shared);
#pragma unroll 1
        for (int i = 0; i < kOwnRows; i += 2) {
            int ahead = i + kStages;
            bool same = ahead < kOwnRows;
            int later = same ? tile : tile + 1, from = same ? own : next, two[2];
            for (int k = 0; k < 2; ++k) two[k] = __shfl_sync(kFullWarp, from, (ahead + k) % kOwnRows);
            const u8(*here)[kStagedBytes] = staged + i % kStages;
            u32 copied = copies + i % kStages * kStagedBytes;
            if (tile < search.window_tiles) {
                decode_two<window::Staged>(search, i * kDecoders + decoder, later, two, here, copied,
                                           half, shared);
#if DSV_COMPRESSED
            } else {
                decode_two<compressed::Staged>(search, i * kDecoders + decoder, later, two, here, copied,
                                               half, shared);
#endif
            }
        }
        show_to_products();
        arrive_threads(kDecoded + half, kThreads);
        own = next, next = search.entry(tile + 2, found);
        found = search.page(tile + 3, number), number = search.number(tile + 4, row);
    }
    wait_copies<0>();
}

// ---- Multiplying ------------------------------------------------------------------------------

// The first lane's, as the compiler knows: without it products wait for each other.
__device__ __forceinline__ int uniform(int number) { return __shfl_sync(kFullWarp, number, 0); }

// Of this lane's two heads: largest logarithm so far, and sum of weights of its own entries.
struct Softmax {
    float top[2], sum[2];
};

// This warp's heads: rows 16 w + g of the group's, and 8 more.
__device__ __forceinline__ int head_row(int half) {
    return threadIdx.x / kWarpSize % 4 * 16 + half * 8 + lane_id() / 4;
}

constexpr int kHalves = 2;  // of a warpgroup's channels, a product each: of all it has too many registers
using Logarithms = float[kOwnEntries][4];
using Sums = float[kHalves][kOwnDims / kHalves][4];

template <typename Own>  // of one chunk of a warpgroup's channels
__device__ __forceinline__ auto& of_chunk(Own& sums, int n) {
    return sums[n / (kOwnDims / kHalves)][n % (kOwnDims / kHalves)];
}

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
    close_products();
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
#pragma unroll
    for (int n = 0; n < kOwnDims; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) of_chunk(sums, n)[i] *= rescale[i / 2];  // always: products wait for a branch
    }
    u64 weights = matrix_at(shared.weights, 0);
    u64 entries = matrix_at(shared.entries[half][group * kOwnPanels], kPanelBytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {  // entries
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            int panel = half * kOwnPanels / kHalves;
            multiply_group<kOwnDims * 8 / kHalves, true>(
                sums[half], further(weights, i * 32),
                further(entries, panel * kPanelBytes + i * 16 * kPanelRow));
        }
    }
    close_products();
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
        bool one = group == 0 && anew(lane_id()) % 4 == 0;
        HeadOut<kAll> out(outputs, queries, piece, row, result, one);
#pragma unroll
        for (int n = 0; n < kOwnDims; ++n) {
            int channel = (group * kOwnDims + n) * 8 + lane_id() % 4 * 2;
            out.store_pair(channel, of_chunk(sums, n)[2 * h], of_chunk(sums, n)[2 * h + 1]);
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
    if constexpr (kPair) {
        if (threadIdx.x == 0) {
            start_barriers(shared.sent, 2, 1);
            start_barriers(shared.free, 2, 2 * kMultiplying / kWarpSize);
        }
        cluster_arrive();
        cluster_wait();
    }
    int group = uniform(threadIdx.x / kGroupThreads);
    if (group >= kGroups) {
        give_registers<kDecodingRegisters>();
        int warp = threadIdx.x / kWarpSize % kDecodingWarps;
        Kept& kept = shared.of_warps[warp];
#pragma unroll 1
        while (run.left > 0) {
            Piece piece = next_piece(run, window, others, slots);
            if (lane_id() == 0) kept = {run, piece};
            __syncwarp();
            int before = run.done + piece.first - piece.last;
            Search search = {window, others, kept.piece, piece.tiles.window, piece.last};
            decode_tiles(search, piece.first, before, warp, shared);
            run = kept.run;
            __syncwarp();
        }
        return;
    }
    take_registers<kMultiplyingRegisters>();
    Kept kept = {run, {}};
#pragma unroll 1
    while (uniform(kept.run.left) > 0) {
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
        Logarithms logarithms = {};
        auto start_keys = [&](int count) {
            wait_decoded(count, shared);
            multiply_keys(shared, count & 1, group, logarithms);
        };
        int end = uniform(kept.run.done), count = end - uniform(piece.last - piece.first);
        if (kPair) start_keys(count), wait_products<0>();
#pragma unroll 1
        for (; count < end; ++count) {
            int half = count & 1;
            float rescale[2];
            if (!kPair) start_keys(count), wait_products<0>();
            share_tops(logarithms, queries.scale, half, group, shared);
            sync_threads(kTogether, kMultiplying);
            share_weights(logarithms, group, softmax, rescale, shared);
            show_to_products();
            sync_threads(kTogether, kMultiplying);
            for (auto& each : logarithms) each[0] = each[1] = each[2] = each[3] = 0.0f;
            add_values(shared, half, group, rescale, sums);
            if (kPair && count + 1 < end) {
                start_keys(count + 1);
                wait_products<1>();
            } else {
                wait_products<0>();
            }
            if (count + 2 < end + kept.run.left) free_tile(count, shared);
            if (kPair) wait_products<0>();
        }
        store_sums(queries, outputs, kept, group, softmax, sums, shared);
    }
}

#include "attend_kernel.cuh"
