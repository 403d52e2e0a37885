// Indexer scores of queries against keys in their pages, on tensor cores.
//
// A warp takes 32 keys at a time, for all heads and all query tokens of their request: so each key
// is read once. Copies of the next ones are under way while it works on them. Blocks share the keys of
// all requests out evenly, whatever the lengths.
//
// Compile-time: the format, see format.cuh, of 128 channels; DSV_HEADS; DSV_WARPS of a block, 12 of which a
// multiprocessor holds; DSV_TOKENS query tokens of a request; DSV_SHARED_BYTES.
#include "async.cuh"
#include "format.cuh"
#include "tensor.cuh"

constexpr int kWarps = DSV_WARPS, kStages = 2, kKeys = 32;  // of a block, of a warp, of a stage
constexpr int kTiles = (DSV_HEADS + 7) / 8;         // of heads
constexpr int kSteps = 4;                           // of 32 channels, of which a lane takes 8
constexpr int kLaneBytes = DSV_DATA_ROW / 16;       // that hold those 8
constexpr int kPieces = DSV_DATA_ROW / 64;          // of 16 bytes, in 32 channels
constexpr int kWords = 8;                           // of a lane's part of A

static_assert(DSV_DIMS == 128 && DSV_VALUE_DIMS == 128, "keys have 128 channels");
static_assert(kHasScales ? DSV_SCALE_BYTES == 4 : DSV_VALUE == 0, "scales are a word");
static_assert(DSV_PAGE_BYTES % 16 == 0, "rows begin at multiples of 16 bytes");

// 32 keys as a warp multiplies them: of each 8 keys first channels 0..31, then 32..63, ...
struct Stage {
    u8 keys[4][8 * DSV_DATA_ROW];
    u32 scales[kKeys];
    int entries[kKeys];  // physical
};
struct Shared {
    Stage stages[kWarps][kStages];
    uint2 queries[DSV_TOKENS][kTiles][kSteps][kWarpSize];  // as lanes multiply them
    float weights[DSV_TOKENS][kTiles * 8];
    int lengths[DSV_TOKENS], count;  // columns that each token sees, and tokens
};

static_assert(sizeof(Shared) <= DSV_SHARED_BYTES, "a launch gives it so much");

// A leader is the first of a request's tokens, or a later one where DSV_TOKENS of them begin: it
// stands for those that follow.
struct Tokens {
    const u8* queries;     // e4m3[count, DSV_HEADS, 128]
    const float* weights;  // [count, DSV_HEADS]
    const i64* slots;      // [count]
    const i64* lengths;    // [count]
    const int* candidates; // [count, num_candidates]: blocks of keys, or null
    int count, columns, num_candidates;
};
struct Table {
    const int* blocks;  // [num_slots, width]
    int num_slots, width;
    i64 num_pages;
};

// Keys that a token sees.
__device__ __forceinline__ int length_of(const Tokens& tokens, int token, int most) {
    i64 length = tokens.slots[token] >= 0 ? tokens.lengths[token] : 0;
    return length < 0 ? 0 : length < most ? int(length) : most;
}

// Tokens that a token stands for, itself counted, and steps of 32 columns that they take: none of one that
// does not lead. Whatever may be asked for is loaded at once.
struct Lead {
    int tokens, steps;
};
__device__ __forceinline__ Lead lead_of(const Tokens& tokens, int token) {
    if (token >= tokens.count) return {0, 0};
    if (tokens.candidates) return {1, (tokens.columns + kKeys - 1) / kKeys};  // each has its own keys
    i64 slot = tokens.slots[token], before = tokens.slots[max(token - 1, 0)];
    int count = 0, longest = 0;
#pragma unroll
    for (int i = 0; i < DSV_TOKENS; ++i) {
        int at = min(token + i, tokens.count - 1);
        bool own = token % DSV_TOKENS + i < DSV_TOKENS && token + i < tokens.count;
        int length = length_of(tokens, at, tokens.columns);
        if (count == i && own && tokens.slots[at] == slot) ++count, longest = max(longest, length);
    }
    if (token % DSV_TOKENS && before == slot) return {0, 0};
    return {count, (longest + kKeys - 1) / kKeys};
}

// A token's key in a column: its page, as the table has it or -1, and its row there. Nothing is asked
// of the page yet: it is on its way from memory.
struct Found {
    int page, row;
};
__device__ __forceinline__ Found find_key(const Table& table, const Tokens& tokens, int token, i64 slot,
                                          int column) {
    i64 key = column;
    if (tokens.candidates) {
        int size = tokens.columns / tokens.num_candidates;
        int at = column / size, block = -1;
        if (at < tokens.num_candidates) {
            block = tokens.candidates[(i64)token * tokens.num_candidates + at];
        }
        key = (i64)block * size + column % size;
        if (block < 0 || key >= tokens.lengths[token]) return {-1, 0};
    }
    bool there = (slot >= 0) & (slot < table.num_slots) & (key / DSV_ENTRIES < table.width);
    int page = there ? table.blocks[slot * table.width + key / DSV_ENTRIES] : -1;
    return {page, int(key % DSV_ENTRIES)};
}

// Physical entry; -1 where there is none.
__device__ __forceinline__ int entry_of(const Table& table, const Found& found) {
    bool there = found.page >= 0 && found.page < table.num_pages;
    return there ? found.page * DSV_ENTRIES + found.row : -1;
}

// Starts copies of 32 keys, of which each lane holds one's physical entry.
__device__ __forceinline__ void copy_keys(const u8* pages, int entry, Stage& stage) {
    int lane = lane_id();
    stage.entries[lane] = entry;
    if constexpr (kHasScales) {
        copy_async<4>(&stage.scales[lane], scale_row(pages, max(entry, 0)), entry >= 0);
    }
    int row = lane / kPieces % 8, piece = lane % kPieces;
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
        int there = __shfl_sync(kFullWarp, entry, eight * 8 + row);
        const u8* data = data_row(pages, max(there, 0)) + piece * 16;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {  // copies of a warp are 32 pieces
            int chunk = i * kWarpSize + lane, channels = chunk / (8 * kPieces);
            copy_async<16>(&stage.keys[eight][chunk * 16], data + channels * kPieces * 16,
                           there >= 0);
        }
    }
}

// This lane's part of 16 keys and 32 channels.
__device__ __forceinline__ void load_keys(const Stage& stage, int sixteen, int step, u32* a) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // keys g, then g + 8
        const u8* at = stage.keys[2 * sixteen + half] + (step * kWarpSize + lane_id()) * kLaneBytes;
        if constexpr (kLaneBytes == 16) {
            uint4 pairs = *(const uint4*)at;
            a[half] = pairs.x, a[half + 2] = pairs.y;
            a[half + 4] = pairs.z, a[half + 6] = pairs.w;
        } else {
            u32 codes[2];
            if constexpr (kE2m1) {  // even channels, then odd ones; an e2m1 is an e4m3 times 64
                u32 both = *(const u32*)at;
                codes[0] = (both << 4 & 0x80808080u) | (both << 2 & 0x1c1c1c1cu);
                codes[1] = (both & 0x80808080u) | (both >> 2 & 0x1c1c1c1cu);
            } else {
                uint2 both = *(const uint2*)at;
                codes[0] = both.x, codes[1] = both.y;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) a[half + 2 * i] = unpack_e4m3(codes[i / 2], i % 2);
        }
    }
}

// This lane's part of 8 heads and 32 channels, as the keys are.
__device__ __forceinline__ void unpack_query(uint2 query, u32* b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        u32 codes = i < 2 ? query.x : query.y;
        b[i] = kLaneBytes == 16 ? e4m3_pair_to_bf16(codes, i % 2) : unpack_e4m3(codes, i % 2);
    }
}

// Adds products of 32 channels of 16 keys and 8 heads.
__device__ __forceinline__ void multiply(float* d, const u32* a, const u32* b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if constexpr (kLaneBytes == 16) mma_bf16(d, a + 4 * half, b + 2 * half);
        if constexpr (kLaneBytes != 16) mma_unpacked(d, a + 4 * half, b + 2 * half);
    }
}

// What a block of 32 channels counts for of keys g and g + 8.
__device__ __forceinline__ void load_factors(const Stage& stage, int sixteen, float (*factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        u32 word = stage.scales[sixteen * 16 + half * 8 + lane_id() / 4];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            factors[step][half] = bf16_low(scale_to_bf16x2(word, step * kGroupChunks));
        }
    }
}

// Keys of a stage in registers, unpacked once for all heads.
struct Keys {
    u32 words[2][kSteps][kWords];
    float factors[2][kE2m1 ? kSteps : 1][2];
};

__device__ __forceinline__ void load_stage(const Stage& stage, Keys& keys) {
#pragma unroll
    for (int sixteen = 0; sixteen < 2; ++sixteen) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            load_keys(stage, sixteen, step, keys.words[sixteen][step]);
        }
        if constexpr (kE2m1) load_factors(stage, sixteen, keys.factors[sixteen]);
    }
}

// Weighted sums over heads of what is positive, of one query token: lane 4 g + t gives that of key
// 8 t + g, its own scale left out.
__device__ __forceinline__ float sum_heads(const Shared& shared, int token, const Keys& keys) {
    float sums[4] = {};
    int lane = lane_id();
#pragma unroll(kE2m1 ? 1 : 2)
    for (int tile = 0; tile < kTiles; ++tile) {
        float products[2][4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            u32 query[4];
            unpack_query(shared.queries[token][tile][step][lane], query);
#pragma unroll
            for (int sixteen = 0; sixteen < 2; ++sixteen) {
                if constexpr (kE2m1) {
                    float part[4] = {};
                    multiply(part, keys.words[sixteen][step], query);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        products[sixteen][i] = fmaf(part[i], keys.factors[sixteen][step][i / 2],
                                                    products[sixteen][i]);
                    }
                } else {
                    multiply(products[sixteen], keys.words[sixteen][step], query);
                }
            }
        }
        const float* weights = &shared.weights[token][tile * 8 + lane % 4 * 2];
#pragma unroll
        for (int sixteen = 0; sixteen < 2; ++sixteen) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float positive = fmaxf(products[sixteen][i], 0.0f);
                sums[sixteen * 2 + i / 2] = fmaf(weights[i % 2], positive,
                                                 sums[sixteen * 2 + i / 2]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sums[i] += __shfl_xor_sync(kFullWarp, sums[i], 1);
        sums[i] += __shfl_xor_sync(kFullWarp, sums[i], 2);
    }
    int t = lane % 4;
    return t < 2 ? (t ? sums[1] : sums[0]) : (t == 2 ? sums[2] : sums[3]);
}

// Scores of a stage's keys for a token and those it stands for.
__device__ __forceinline__ void score_keys(const Shared& shared, const Stage& stage,
                                           const Tokens& tokens, int token, int step,
                                           float* out) {
    Keys keys;
    load_stage(stage, keys);
    int key = lane_id() % 4 * 8 + lane_id() / 4, column = step * kKeys + key;
    float scale = kE2m1 ? 64.0f : kHasScales ? __uint_as_float(stage.scales[key]) : 1.0f;
#pragma unroll 1
    for (int i = 0; i < shared.count; ++i) {
        float score = sum_heads(shared, i, keys) * scale;
        if (stage.entries[key] < 0 || column >= shared.lengths[i]) score = minus_infinity();
        if (column < tokens.columns) {
            dsv_write(out + (i64)(token + i) * tokens.columns + column, score);
        }
    }
}

// Queries and weights of a token and those it stands for; zeros for heads that fill up a tile.
__device__ __forceinline__ void load_queries(const Tokens& tokens, int token, Shared& shared) {
    int count = lead_of(tokens, token).tokens;
    for (int i = threadIdx.x; i < count * kTiles * 8 * 16; i += blockDim.x) {
        int head = i / 16 % (kTiles * 8), piece = i % 16, which = i / (kTiles * 8 * 16);
        i64 row = (i64)(token + which) * DSV_HEADS + head;
        uint2 query = make_uint2(0, 0);
        if (head < DSV_HEADS) query = *(const uint2*)(tokens.queries + row * 128 + piece * 8);
        if constexpr (kE2m1) {
            query = make_uint2(__byte_perm(query.x, query.y, 0x6420),
                               __byte_perm(query.x, query.y, 0x7531));
        }
        shared.queries[which][head / 8][piece / 4][head % 8 * 4 + piece % 4] = query;
        if (piece == 0) {
            shared.weights[which][head] = head < DSV_HEADS ? tokens.weights[row] : 0.0f;
        }
    }
    if (int(threadIdx.x) < count) {
        int most = tokens.candidates ? 0x7fffffff : tokens.columns, which = threadIdx.x;
        int length = length_of(tokens, token + which, most);
        shared.lengths[which] = tokens.candidates && length ? tokens.columns : length;
    }
    if (threadIdx.x == 0) shared.count = count;
}

// Scores columns of steps first .. last - 1 of a token, and of those it stands for; by a block.
__device__ __forceinline__ void score_token(const u8* pages, const Table& table,
                                            const Tokens& tokens, int token, int first, int last,
                                            float* out, Shared& shared) {
    int warp = threadIdx.x / kWarpSize;
    Stage* stages = shared.stages[warp];
    i64 slot = tokens.slots[token];
    auto find = [&](int step) {
        if (step >= last) return Found{-1, 0};
        return find_key(table, tokens, token, slot, step * kKeys + lane_id());
    };
    auto start = [&](int step, const Found& key) {
        if (step < last) {
            copy_keys(pages, entry_of(table, key), stages[(step - first) / kWarps % kStages]);
        }
        close_copies();
    };
    int step = first + warp, ahead = step;
#pragma unroll
    for (int i = 0; i + 1 < kStages; ++i, ahead += kWarps) start(ahead, find(ahead));
    Found next = find(ahead);
    __syncthreads();  // nobody reads the last token's queries any more
    load_queries(tokens, token, shared);
    __syncthreads();
#pragma unroll 1
    for (; step < last; step += kWarps, ahead += kWarps) {
        wait_copies<kStages - 2>();
        __syncwarp();  // all lanes' copies are there, and the stage before is read
        start(ahead, next);
        next = find(ahead + kWarps);
        score_keys(shared, stages[(step - first) / kWarps % kStages], tokens, token, step, out);
    }
    wait_copies<0>();
    __syncwarp();
}

// Columns after the keys that a token sees, up to the most that any sees: of none.
__device__ __forceinline__ void fill_rest(const Tokens& tokens, float* out) {
    int longest = 0;
#pragma unroll 1
    for (int t = lane_id(); t < tokens.count; t += kWarpSize) {
        longest = max(longest, length_of(tokens, t, tokens.columns));
    }
    longest = most_of_lanes(longest);
#pragma unroll 1
    for (int first = 0; first < tokens.count; first += kWarpSize) {
        int own = longest;
        if (first + lane_id() < tokens.count) own = length_of(tokens, first + lane_id(), tokens.columns);
#pragma unroll 1
        for (u32 shorter = __ballot_sync(kFullWarp, own < longest); shorter; shorter &= shorter - 1) {
            int lane = __popc((shorter & -shorter) - 1);
            float* row = out + (i64)(first + lane) * tokens.columns;
#pragma unroll 1
            for (i64 j = __shfl_sync(kFullWarp, own, lane) + thread_id(); j < longest; j += thread_count()) {
                dsv_write(row + j, minus_infinity());
            }
        }
    }
}

// out: float32[count, columns]; see contract.Backend.index_scores.
DSV_KERNEL void __launch_bounds__(kWarps* kWarpSize, 12 / kWarps)
    index_scores(const u8* pages, const int* blocks, const i64* slots, const i64* lengths,
                 const u8* queries, const float* weights, const int* candidates, float* out,
                 int count, int columns, int num_candidates, int num_slots, int width,
                 i64 num_pages) {
    begin_kernel();
    Shared& shared = *(Shared*)dynamic_shared();
    Table table = {blocks, num_slots, width, num_pages};
    Tokens tokens = {queries, weights, slots, lengths, num_candidates ? candidates : nullptr,
                     count, columns, num_candidates};
    int total = 0;
#pragma unroll 1
    for (int t = lane_id(); t < count; t += kWarpSize) total += lead_of(tokens, t).steps;
    total = sum_lanes(total);
    // This block's part of all steps, token after token.
    int first = int((i64)total * blockIdx.x / gridDim.x);
    int last = int((i64)total * (blockIdx.x + 1) / gridDim.x), before = 0;
#pragma unroll 1
    for (int t = 0; t < count && before < last; t += kWarpSize) {
        int steps = lead_of(tokens, t + lane_id()).steps, end = before + scan_lanes(steps);
        u32 mine = __ballot_sync(kFullWarp, max(first, end - steps) < min(last, end));
#pragma unroll 1
        for (; mine; mine &= mine - 1) {
            int lane = __popc((mine & -mine) - 1), begin = __shfl_sync(kFullWarp, end - steps, lane);
            int stop = __shfl_sync(kFullWarp, end, lane);
            score_token(pages, table, tokens, t + lane, max(first, begin) - begin,
                        min(last, stop) - begin, out, shared);
        }
        before = __shfl_sync(kFullWarp, end, kWarpSize - 1);
    }
    if (!num_candidates) fill_rest(tokens, out);
}
