// Attention of query tokens over the window and compressed entries, read in their pages: an entry is
// key and value of every head.
//
// A block takes up to DSV_HEADS heads of a token at a time, and of the token's tiles of DSV_TILE
// entries, the window's, then the compressed ones, those of its run (attention.cuh). A tile's bytes arrive while the one before is
// worked on; it is decoded once, to bf16 in shared memory, for all heads. Products are the tensor
// cores', with sums in float32; so is the softmax, in base 2. Where blocks share a token, merge.cuh's
// kernel merges what they found.
//
// Compile-time: DSV_HEADS, DSV_TILE, DSV_WARPS; format.cuh's parameters of the window (DSV_WINDOW_...)
// and, where DSV_COMPRESSED is 1, of the compressed entries (DSV_MAIN_...); DSV_CHOSEN 1 where those
// are named by indices.
#include "attention.cuh"
#include "tensor.cuh"

constexpr int kWarps = DSV_WARPS;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kHeadTiles = kHeads / 16;
// Products with keys: a warp has kOwnHeads tiles of 16 heads and kOwnEntries tiles of 8 entries.
constexpr int kRowWarps = kHeadTiles == 4 ? 2 : 1, kColumnWarps = kWarps / kRowWarps;
constexpr int kOwnHeads = kHeadTiles / kRowWarps, kOwnEntries = kTile / 8 / kColumnWarps;
// Products with values: a warp has all heads and kOwnDims tiles of 8 channels.
constexpr int kOwnDims = kDimChunks / kWarps;
constexpr int kTileChunks = kTile / 8;

static_assert(kHeadTiles == 1 || kHeadTiles == 2 || kHeadTiles == 4, "16, 32 or 64 heads");
static_assert(kOwnEntries * kColumnWarps * 8 == kTile, "warps share a tile's entries out");
static_assert(kOwnDims % 2 == 0 && kTile % 16 == 0, "matrices are loaded four at once");

// Rows of 16-byte chunks, each in a place by which 8 rows of one chunk meet in no bank.
struct Shared {
    uint4 queries[kHeads][kDimChunks];
    uint4 entries[kTile][kDimChunks];
    uint4 weights[kHeads][kTileChunks];
    u8 staged[kTile][kStagedBytes];
    float tops[kColumnWarps][kHeads];
    float rescale[kHeads];
    int there[2][kTile];  // physical entries of a tile and the next one
    Kept kept;
};
static_assert(sizeof(Shared) <= DSV_SHARED_BYTES, "a launch gives it so much");

__device__ __forceinline__ int place_of(int row, int chunk) { return chunk ^ (row & 7); }
__device__ __forceinline__ int weight_place(int row, int chunk) {
    return chunk ^ (row * kTileChunks / 8 & (kTileChunks - 1));
}

// Starts copies of a token's heads; zeros for heads that fill up.
__device__ __forceinline__ void copy_queries(int thread, const Queries& queries, int token, int first_head,
                                             Shared& shared) {
    for (int i = thread; i < kHeads * kDimChunks; i += kThreads) {
        int row = i / kDimChunks, chunk = i % kDimChunks, head = first_head + row;
        bool there = head < queries.heads;
        i64 at = (i64)token * queries.heads + (there ? head : 0);
        copy_async<16>(&shared.queries[row][place_of(row, chunk)],
                       queries.values + (at * kDimChunks + chunk) * 16, there);
    }
}

template <typename Part>
__device__ __forceinline__ void stage_row(const u8* pages, int entry, u8* staged) {
    Part::stage(Part::place(pages, entry), entry >= 0, shared_address(staged));
}
template <typename Part, typename Store>
__device__ __forceinline__ void decode_row(const u8* staged, Store store) {
    Part::decode(Part::load(staged), store);
}

// Products of this warp's heads and entries, scaled, -infinity where there is no entry.
__device__ __forceinline__ void multiply_keys(int thread, const Shared& shared, const int* there, float scale,
                                              float (*sums)[kOwnEntries][4]) {
    int lane = thread % kWarpSize, warp = thread / kWarpSize;
    int first_row = warp / kColumnWarps * kOwnHeads * 16;
    int first_entry = warp % kColumnWarps * kOwnEntries * 8;
#pragma unroll
    for (int m = 0; m < kOwnHeads; ++m) {
#pragma unroll
        for (int n = 0; n < kOwnEntries; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
        }
    }
#pragma unroll 2
    for (int channels = 0; channels < kDimChunks; channels += 4) {  // 32 of them
        u32 keys[kOwnEntries][4];
#pragma unroll
        for (int n = 0; n < kOwnEntries; ++n) {
            int row = first_entry + n * 8 + lane % 8;
            load_matrices<false>(keys[n], &shared.entries[row][place_of(row, channels + lane / 8)]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int m = 0; m < kOwnHeads; ++m) {
                u32 heads[4];
                int row = first_row + m * 16 + lane % 16, chunk = channels + half * 2 + lane / 16;
                load_matrices<false>(heads, &shared.queries[row][place_of(row, chunk)]);
#pragma unroll
                for (int n = 0; n < kOwnEntries; ++n) {
                    mma_bf16(sums[m][n], heads, keys[n] + 2 * half);
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < kOwnEntries; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            bool seen = there[first_entry + n * 8 + lane % 4 * 2 + i % 2] >= 0;
#pragma unroll
            for (int m = 0; m < kOwnHeads; ++m) {
                sums[m][n][i] = seen ? sums[m][n][i] * scale : minus_infinity();
            }
        }
    }
}

// Largest logarithm so far, and sum of weights of this lane's own entries, of heads g and g + 8 of
// each of this warp's tiles.
struct Softmax {
    float top[kOwnHeads][2], sum[kOwnHeads][2];
};

// Writes this warp's largest logarithms.
__device__ __forceinline__ void share_tops(int thread, const float (*sums)[kOwnEntries][4], Shared& shared) {
    int lane = thread % kWarpSize, warp = thread / kWarpSize;
#pragma unroll
    for (int m = 0; m < kOwnHeads; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = minus_infinity();
#pragma unroll
            for (int n = 0; n < kOwnEntries; ++n) {
                top = fmaxf(top, fmaxf(sums[m][n][2 * half], sums[m][n][2 * half + 1]));
            }
            top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
            top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
            int row = (warp / kColumnWarps * kOwnHeads + m) * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0) shared.tops[warp % kColumnWarps][row] = top;
        }
    }
}

// Turns logarithms into weights, as bf16 for the tensor cores, and says by what to scale what has
// been summed up so far.
__device__ __forceinline__ void share_weights(int thread, const float (*sums)[kOwnEntries][4], Softmax& softmax,
                                              Shared& shared) {
    int lane = thread % kWarpSize, warp = thread / kWarpSize, column = warp % kColumnWarps;
#pragma unroll
    for (int m = 0; m < kOwnHeads; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int row = (warp / kColumnWarps * kOwnHeads + m) * 16 + half * 8 + lane / 4;
            float before = softmax.top[m][half], top = before;
#pragma unroll
            for (int w = 0; w < kColumnWarps; ++w) top = fmaxf(top, shared.tops[w][row]);
            float rescale = weight_of(before, top), sum = softmax.sum[m][half] * rescale;
#pragma unroll
            for (int n = 0; n < kOwnEntries; ++n) {
                float first = weight_of(sums[m][n][2 * half], top);
                float second = weight_of(sums[m][n][2 * half + 1], top);
                sum += first + second;
                int chunk = column * kOwnEntries + n;
                u32* words = (u32*)&shared.weights[row][weight_place(row, chunk)];
                words[lane % 4] = pack_bf16(first, second);
            }
            softmax.top[m][half] = top, softmax.sum[m][half] = sum;
            if (column == 0 && lane % 4 == 0) shared.rescale[row] = rescale;
        }
    }
}

// Sums of values of all heads and this warp's channels.
using Sums = float[kHeadTiles][kOwnDims][4];

__device__ __forceinline__ void add_values(int thread, const Shared& shared, Sums& sums) {
    int lane = thread % kWarpSize, warp = thread / kWarpSize, first_chunk = warp * kOwnDims;
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float rescale = shared.rescale[m * 16 + half * 8 + lane / 4];
#pragma unroll
            for (int n = 0; n < kOwnDims; ++n) {
                sums[m][n][2 * half] *= rescale, sums[m][n][2 * half + 1] *= rescale;
            }
        }
    }
#pragma unroll 2
    for (int sixteen = 0; sixteen < kTile / 16; ++sixteen) {  // entries
        u32 weights[kHeadTiles][4];
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) {
            int row = m * 16 + lane % 16, chunk = sixteen * 2 + lane / 16;
            load_matrices<false>(weights[m], &shared.weights[row][weight_place(row, chunk)]);
        }
#pragma unroll
        for (int n = 0; n < kOwnDims; n += 2) {
            u32 values[4];
            int row = sixteen * 16 + lane % 16, chunk = first_chunk + n + lane / 16;
            load_matrices<true>(values, &shared.entries[row][place_of(row, chunk)]);
#pragma unroll
            for (int m = 0; m < kHeadTiles; ++m) {
                mma_bf16(sums[m][n], weights[m], values);
                mma_bf16(sums[m][n + 1], weights[m], values + 2);
            }
        }
    }
}

template <bool kAll>
__device__ __forceinline__ void store_sums(int thread, const Queries& queries, const Outputs& outputs,
                                           const Piece& piece, const Sums& sums,
                                           const Shared& shared) {
    int lane = thread % kWarpSize, warp = thread / kWarpSize;
#pragma unroll
    for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int row = m * 16 + half * 8 + lane / 4;
            if (piece.group * kHeads + row >= queries.heads) continue;
            Result result = {shared.rescale[row], 0.0f};
#pragma unroll
            for (int w = 0; w < kColumnWarps; ++w) result.sum += shared.tops[w][row];
            bool one = warp == 0 && lane % 4 == 0;
            HeadOut<kAll> out(outputs, queries, piece, row, result, one);
#pragma unroll
            for (int n = 0; n < kOwnDims; ++n) {
                int channel = (warp * kOwnDims + n) * 8 + lane % 4 * 2;
                out.store_pair(channel, sums[m][n][2 * half], sums[m][n][2 * half + 1]);
            }
        }
    }
}

// Leaves each head's top and sums of weights where store_sums finds them.
__device__ __forceinline__ void share_results(int thread, const Softmax& softmax, Shared& shared) {
    int lane = thread % kWarpSize, warp = thread / kWarpSize, column = warp % kColumnWarps;
#pragma unroll
    for (int m = 0; m < kOwnHeads; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = softmax.sum[m][half];
            sum += __shfl_xor_sync(kFullWarp, sum, 1);
            sum += __shfl_xor_sync(kFullWarp, sum, 2);
            int row = (warp / kColumnWarps * kOwnHeads + m) * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0) shared.tops[column][row] = sum;
            if (lane % 4 == 0 && column == 0) shared.rescale[row] = softmax.top[m][half];
        }
    }
}

// Attends to a block's tiles of one token and group of heads.
__device__ __forceinline__ void attend_piece(const u8* ring, const Window& window,
                                             const Others& others, const Queries& queries,
                                             const Outputs& outputs, Kept& kept,
                                             Shared& shared) {
    const Piece& piece = shared.kept.piece;
    int thread = anew(threadIdx.x), lane = thread % kWarpSize, warp = thread / kWarpSize;
    int last = piece.last, window_tiles = piece.tiles.window;

    // Lane l of a warp looks up its entry l of a tile: that is number l * kWarps + warp.
    Search search = {window, others, piece, window_tiles, last};
    int row = min(lane * kWarps + warp, kTile - 1);
    auto find = [&](int tile) { return search.page(tile, search.number(tile, row)); };
    auto start = [&](int number, int entry) {
#pragma unroll 1
        for (int i = 0; i < kTile / kWarps && number < last; ++i) {
            int own = __shfl_sync(kFullWarp, entry, i), row = i * kWarps + warp;
            if (lane == 0) shared.there[number % 2][row] = own;
            if (number < window_tiles) stage_row<window::Staged>(ring, own, shared.staged[row]);
#if DSV_COMPRESSED
            if (number >= window_tiles) {
                stage_row<compressed::Staged>(others.pages, own, shared.staged[row]);
            }
#endif
        }
        close_copies();
    };
    auto decode = [&](int number) {
#pragma unroll 2
        for (int row = warp; row < kTile; row += kWarps) {
            auto store = [&](int chunk, uint4 values) {
                shared.entries[row][place_of(row, chunk)] = values;
            };
            if (number < window_tiles) decode_row<window::Staged>(shared.staged[row], store);
#if DSV_COMPRESSED
            if (number >= window_tiles) decode_row<compressed::Staged>(shared.staged[row], store);
#endif
        }
    };

    copy_queries(thread, queries, piece.token, piece.group * kHeads, shared);
    int tile = piece.first;
    start(tile, search.entry(tile, find(tile)));
    Search::Found found = find(tile + 1);
    int number = search.number(tile + 2, row);
    Softmax softmax;
#pragma unroll
    for (int m = 0; m < kOwnHeads; ++m) {
        softmax.top[m][0] = softmax.top[m][1] = minus_infinity();
        softmax.sum[m][0] = softmax.sum[m][1] = 0.0f;
    }
    Sums sums = {};
#pragma unroll 1
    for (; tile < last; ++tile) {
        wait_copies<0>();
        __syncthreads();  // the tile is there, and the one before is no longer read
        decode(tile);
        __syncthreads();
        start(tile + 1, search.entry(tile + 1, found));
        found = search.page(tile + 2, number), number = search.number(tile + 3, row);
        float logarithms[kOwnHeads][kOwnEntries][4];
        multiply_keys(thread, shared, shared.there[tile % 2], queries.scale, logarithms);
        share_tops(thread, logarithms, shared);
        __syncthreads();
        share_weights(thread, logarithms, softmax, shared);
        __syncthreads();
        add_values(thread, shared, sums);
    }
    __syncthreads();
    share_results(thread, softmax, shared);
    kept = shared.kept;
    __syncthreads();
    if (has_all(kept.piece)) {
        store_sums<true>(thread, queries, outputs, kept.piece, sums, shared);
    } else {
        store_sums<false>(thread, queries, outputs, kept.piece, sums, shared);
    }
}

// See contract.Backend.attend.
__device__ __forceinline__ void attend_run(Run run, const i64* slots, const Window& window,
                                           const Others& others, const Queries& queries,
                                           const Outputs& outputs, Shared& shared) {
    Kept kept = {run, {}};
#pragma unroll 1
    while (kept.run.left > 0) {
        kept.piece = next_piece(kept.run, window, others, slots);
        if (threadIdx.x == 0) {
            store_parts(outputs, kept);
            shared.kept = kept;
        }
        __syncthreads();
        attend_piece(window.pages, window, others, queries, outputs, kept, shared);
    }
}

#include "attend_kernel.cuh"
