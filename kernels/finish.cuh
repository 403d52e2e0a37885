// What turns pooled channels, or a projected value, into an entry: RMSNorm, RoPE, Hadamard where
// asked, quantisation.
//
// Compile-time: format.cuh's parameters; DSV_RATIO tokens an entry; DSV_ROPE_PAIRS pairs rotated at
// the end of an entry; DSV_ROPE_TABLE 1 where their cosines and sines are read, 0 where they are
// worked out; DSV_ROUND_NORM 1 where RoPE is given bf16, DSV_ROUND_ROPE 1 where what it gives is
// rounded to bf16 before it is quantised; DSV_HADAMARD 1 where keys are rotated.
#ifndef DSV_FINISH_CUH
#define DSV_FINISH_CUH
#include "format.cuh"
#include "four.cuh"
#if DSV_HADAMARD
#include "hadamard.cuh"
#endif

constexpr int kFirstRotated = kChunks - DSV_ROPE_PAIRS / 4;  // chunk

static_assert(DSV_ROPE_PAIRS % 4 == 0, "whole chunks are rotated");
static_assert(DSV_ROUND_ROPE || !DSV_HADAMARD, "what Hadamard rotates is rounded");

// A table has a row for each group, [groups, 2 DSV_ROPE_PAIRS]: cosines of the angles of its first
// position, then their sines. Without one: [DSV_ROPE_PAIRS], radians per position.
#if DSV_ROPE_TABLE
using Rope = float;
#else
using Rope = double;
#endif

// What turns pooled channels into an entry.
struct Finish {
    const float* norm_weight;  // [DSV_DIMS]
    const Rope* rope;
    float norm_eps;
};

// Which entry a block or warp works on: its tokens begin at `first`; none where `entry` < 0.
struct Job {
    i64 slot, first, entry;
};

// Cosines and sines of pairs 4 part .. 4 part + 3 of the group that begins at a position.
#if DSV_ROPE_TABLE
__device__ __forceinline__ void load_turns(const Rope* rope, i64 position, int part, Four& cos,
                                           Four& sin) {
    const float* row = rope + position / DSV_RATIO * (2 * DSV_ROPE_PAIRS) + part * 4;
    cos = cached_four(row);
    sin = cached_four(row + DSV_ROPE_PAIRS);
}
#else
// The angle reaches 10^6 radians: turns are counted in double, where only whole turns fall away,
// and the rest goes to functions that need no range reduction (sinf of a large argument would use
// local memory).
__device__ __forceinline__ void load_turns(const Rope* rope, i64 position, int part, Four& cos,
                                           Four& sin) {
    constexpr double kHalfTurnsPerRadian = 0.31830988618379067154;  // 1 / pi
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        double half_turns = (double)position * rope[part * 4 + p] * kHalfTurnsPerRadian;
        sincospif((float)(half_turns - 2.0 * rint(0.5 * half_turns)), &sin.at[p], &cos.at[p]);
    }
}
#endif

__device__ __forceinline__ void rope_chunk(float* v, i64 position, int part, const Rope* rope) {
    Four cos, sin;
    load_turns(rope, position, part, cos, sin);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        float real = v[2 * p], imaginary = v[2 * p + 1];
        v[2 * p] = fmaf(real, cos.at[p], -(imaginary * sin.at[p]));
        v[2 * p + 1] = fmaf(real, sin.at[p], imaginary * cos.at[p]);
    }
}

#if DSV_ROUND_ROPE
using Finished = uint4;  // 8 bf16
__device__ __forceinline__ Finished finished(const Eight& v) { return rounded(v); }
#else
using Finished = Eight;
__device__ __forceinline__ Finished finished(const Eight& v) { return v; }
#endif

// This lane's chunk of the entry, normalised and rotated.
__device__ __forceinline__ Finished finish_chunk(Eight& v, int chunk, float scale, i64 position,
                                                 const Finish& how) {
#pragma unroll
    for (int c = 0; c < 8; c += 4) {
        Four weight = cached_four(how.norm_weight + chunk * 8 + c);
#pragma unroll
        for (int k = 0; k < 4; ++k) v.at[c + k] = v.at[c + k] * scale * weight.at[k];
    }
    if (DSV_ROUND_NORM) {
        uint4 latent = rounded(v);
#pragma unroll
        for (int c = 0; c < 8; ++c) v.at[c] = value_of(latent, c);
    }
    if (chunk >= kFirstRotated) {
        rope_chunk(v.at, position, chunk - kFirstRotated, how.rope);
    }
    return finished(v);
}

// One entry, by a whole warp; load_pooled(pooled, c) are channels c .. c + 3 before RMSNorm.
template <typename Source>
__device__ __forceinline__ void finish_entry(const Source& pooled, const Job& job,
                                             const Finish& how, u8* pages) {
    Eight v[kChunksPerLane];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kChunksPerLane; ++i) {
        int chunk = lane_id() + i * kWarpSize;
#pragma unroll
        for (int c = 0; c < 8; c += 4) {
            Four part = chunk < kChunks ? load_pooled(pooled, chunk * 8 + c) : four(0.0f);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                v[i].at[c + k] = part.at[k];
                squares = fmaf(part.at[k], part.at[k], squares);
            }
        }
    }
#pragma unroll
    for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
        squares += __shfl_xor_sync(kFullWarp, squares, lanes);
    }
    float scale = rsqrtf(fmaf(squares, 1.0f / DSV_DIMS, how.norm_eps));
    Finished chunks[kChunksPerLane] = {};
#pragma unroll
    for (int i = 0; i < kChunksPerLane; ++i) {
        int chunk = lane_id() + i * kWarpSize;
        if (chunk < kChunks) chunks[i] = finish_chunk(v[i], chunk, scale, job.first, how);
#if DSV_HADAMARD
        chunks[i] = rotate(chunks[i]);
#endif
    }
    encode_entry(data_row(pages, job.entry), scale_row(pages, job.entry), chunks);
}
#endif  // DSV_FINISH_CUH
