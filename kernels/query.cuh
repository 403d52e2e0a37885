// Queries of an indexer: RoPE, Hadamard where asked, e4m3 with the scale folded into the weights.
//
// Compile-time: the format of FP8 keys, see format.cuh; DSV_ROPE_PAIRS pairs rotated at the end of a
// vector; DSV_HADAMARD.
#include "four.cuh"
#include "hadamard.cuh"

constexpr int kFirstRotated = kChunks - DSV_ROPE_PAIRS / 4;  // chunk
constexpr int kTogether = kWarpSize / kChunks;               // heads that a warp takes in one step

static_assert(kChunks == 16 && kE4m3 && DSV_ROPE_PAIRS % 4 == 0, "16 lanes a head, whole chunks");

// A chunk rotated by cosines and sines of its pairs; each product is rounded, as torch's are.
__device__ __forceinline__ uint4 turn(uint4 chunk, const float* cosines, const float* sines) {
    Four cos = cached_four(cosines), sin = cached_four(sines);
    Eight turned;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        float real = value_of(chunk, 2 * p), imaginary = value_of(chunk, 2 * p + 1);
        turned.at[2 * p] = real * cos.at[p] - imaginary * sin.at[p];
        turned.at[2 * p + 1] = real * sin.at[p] + imaginary * cos.at[p];
    }
    return rounded(turned);
}

// queries: bf16[tokens, heads, 128]; weights: float32[tokens, heads]; turns: float32[tokens,
// 2 DSV_ROPE_PAIRS]; out: e4m3[tokens, heads, 128]; out_weights: float32[tokens, heads]; factor: the
// bits of a float. See contract.Backend.indexer_query.
DSV_KERNEL void __launch_bounds__(256)
    indexer_query(const u8* queries, const float* weights, const float* turns, u8* out,
                  float* out_weights, int count, int heads, u32 factor) {
    begin_kernel();
    int own = lane_id() % kChunks;
    for (i64 first = warp_id() * kTogether; first < count; first += warp_count() * kTogether) {
        i64 i = first + lane_id() / kChunks, at = i < count ? i : first;
        uint4 chunk = dsv_load<uint4>(queries + (at * kChunks + own) * 16);
        if (own >= kFirstRotated) {
            const float* row = turns + at / heads * (2 * DSV_ROPE_PAIRS);
            int part = (own - kFirstRotated) * 4;
            chunk = turn(chunk, row + part, row + DSV_ROPE_PAIRS + part);
        }
        if (DSV_HADAMARD) chunk = rotate(chunk);
        u32 code = scale_code(group_amax(chunk));
        uint2 codes = quantise_e4m3(chunk, code);
        if (i >= count) continue;
        dsv_write(out + (i * kChunks + own) * 8, codes);
        if (own == 0) {
            out_weights[i] = weights[i] * __uint_as_float(code << 23) * __uint_as_float(factor);
        }
    }
}
