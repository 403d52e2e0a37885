// The rows that an entry pools: kv and score of its tokens, wherever they lie.
//
// Compile-time: DSV_RATIO tokens an entry, DSV_OVERLAP 1 where it also pools the group before
// (CSA), DSV_DIMS channels of an entry, DSV_STATE_ROWS rows of a ring state or 0 for an online
// state (max, denominator, weighted sum).
#ifndef DSV_ROWS_CUH
#define DSV_ROWS_CUH
#include "four.cuh"

constexpr int kRatio = DSV_RATIO;
constexpr int kDim = DSV_DIMS;
constexpr int kChannels = kDim * (1 + DSV_OVERLAP);  // of a token
constexpr int kRows = kRatio * (1 + DSV_OVERLAP);    // tokens an entry pools
constexpr int kOverlapRows = kRows - kRatio;
constexpr bool kOnline = DSV_STATE_ROWS == 0;
constexpr int kStateRows = kOnline ? 1 : DSV_STATE_ROWS;
constexpr i64 kSlotFloats = (i64)kChannels * (kOnline ? 3 : 2 * kStateRows);  // of a state

static_assert(kOnline || kStateRows >= kRows, "a ring holds all rows of an entry");
static_assert(!(kOnline && DSV_OVERLAP), "an online state has no rows to overlap with");


// A prompt chunk of one request: tokens start .. start + tokens - 1.
struct Chunk {
    i64 slot, start, tokens;
};

// chunk: int64[3], slot, start, tokens. No tokens where they would be beyond max_tokens, before
// position 0, where positions cannot be counted, or in no slot.
__device__ __forceinline__ Chunk load_chunk(const i64* chunk, i64 max_tokens, i64 num_slots) {
    Chunk found = {chunk[0], chunk[1], chunk[2]};
    bool valid = found.slot >= 0 && found.slot < num_slots && found.start >= 0 &&
                 found.start < (i64)1 << 62 && found.tokens > 0 && found.tokens <= max_tokens;
    return valid ? found : Chunk{0, 0, 0};
}

// Rows 0 .. kRows - 1 of one entry: row i is token first + i of the request. Rows before `missing`
// and from `end` on do not count; of the others those before `older` lie in the slot's ring, the
// rest in the chunk.
struct Rows {
    int missing, older, end;
    const float* ring;  // [2, kStateRows, kChannels] of the slot
    int ring_row;       // of row 0
    const float* kv;    // [tokens, kChannels] each
    const float* score;
    const float* ape;    // [kRatio, kChannels]
    i64 chunk_row, last;  // of row 0 and of the chunk's last token
};

// `first` is negative where the request begins inside the group before (overlap).
__device__ __forceinline__ Rows rows_in_ring(const float* ring, i64 first) {
    Rows rows = {};
    rows.missing = first < 0 ? (int)-first : 0;
    rows.older = rows.end = kRows;
    rows.ring = ring;
    rows.ring_row = (int)(first < 0 ? first + kStateRows : first % kStateRows);
    return rows;
}
__device__ __forceinline__ Rows rows_in_chunk(const float* ring, i64 first, const Chunk& chunk,
                                              const float* kv, const float* score,
                                              const float* ape) {
    i64 older = chunk.start - first, end = older + chunk.tokens;
    Rows rows = rows_in_ring(ring, first);
    rows.older = (int)(older < 0 ? 0 : older < kRows ? older : kRows);
    rows.end = (int)(end < kRows ? end : kRows);
    if (kOnline) rows.missing = rows.older;  // the state has them, folded
    rows.kv = kv;
    rows.score = score;
    rows.ape = ape;
    rows.chunk_row = -older;
    rows.last = chunk.tokens - 1;
    return rows;
}

// With overlap the group before gives its first half of channels, the group itself its second.
__device__ __forceinline__ int channel_of(int row, int column) {
    return column + (DSV_OVERLAP && row >= kRatio ? kDim : 0);
}

// Where kv and score of row i begin; of a row that does not count, anywhere inside.
struct RowAt {
    const float *kv, *score;
};
template <bool kInChunk>
__device__ __forceinline__ RowAt locate_row(const Rows& rows, int i) {
    int row = rows.ring_row + i;
    row -= row >= kStateRows ? kStateRows : 0;
    const float* kv_at = rows.ring + row * kChannels;
    const float* score_at = kv_at + kStateRows * kChannels;
    if (kInChunk && (kOnline || i >= rows.older)) {
        i64 token = rows.chunk_row + i;
        token = token < 0 ? 0 : token > rows.last ? rows.last : token;
        kv_at = rows.kv + token * kChannels;
        score_at = rows.score + token * kChannels;
    }
    return {kv_at, score_at};
}

// kv and score of row i. Loads do not depend on whether the row counts, so that those of a batch
// can be under way together (kAhead): what does not count is ignored later.
template <bool kInChunk, bool kAhead>
__device__ __forceinline__ void load_row(const Rows& rows, int i, int column, Four& kv,
                                         Four& score) {
    RowAt at = locate_row<kInChunk>(rows, i);
    at.kv += channel_of(i, column);
    at.score += channel_of(i, column);
    kv = kAhead ? load_four_ahead(at.kv) : load_four(at.kv);
    score = kAhead ? load_four_ahead(at.score) : load_four(at.score);
}

// The score as softmax takes it: biased (in the ring it is already), -infinity in rows that do not
// count, whose kv becomes 0.
template <bool kInChunk>
__device__ __forceinline__ void prepare_row(const Rows& rows, int i, int column, Four& kv,
                                            Four& score) {
    bool counts = i >= rows.missing && i < rows.end;
    bool biased = !kInChunk || (!kOnline && i < rows.older);
    Four bias = four(0.0f);
    if (!biased) bias = cached_four(rows.ape + i % kRatio * kChannels + channel_of(i, column));
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        if (!biased) score.at[c] += bias.at[c];
        if (!counts) score.at[c] = minus_infinity(), kv.at[c] = 0.0f;
    }
}
#endif  // DSV_ROWS_CUH
