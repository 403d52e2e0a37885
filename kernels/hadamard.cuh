// Rotation of indexer keys by Hadamard(128) / sqrt(128), over a warp.
//
// Compile-time: the format, see format.cuh, of 128 channels.
#ifndef DSV_HADAMARD_CUH
#define DSV_HADAMARD_CUH
#include "format.cuh"

static_assert(DSV_DIMS == 128, "16 lanes of 8 channels rotate a key");

// The butterfly in float32, neighbours first, in the order of hadamard in dsv4kv/ops/codec.py:
// sums of three or more have no other rounding. Every lane takes part; 16..31 rotate zeros.
__device__ __forceinline__ uint4 rotate(uint4 chunk) {
    u32 pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
    float values[8];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        values[2 * p] = bf16_low(pairs[p]);
        values[2 * p + 1] = bf16_high(pairs[p]);
    }
#pragma unroll
    for (int half = 1; half < 8; half *= 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i & half) continue;
            float a = values[i], b = values[i + half];
            values[i] = a + b;
            values[i + half] = a - b;
        }
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
        bool upper = lane_id() & step;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float other = __shfl_xor_sync(kFullWarp, values[i], step);
            values[i] = upper ? other - values[i] : values[i] + other;
        }
    }
    constexpr float kRoot = 11.313708498984761f;  // sqrt(128); a division, as the definition has
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        pairs[p] = pack_bf16(values[2 * p] / kRoot, values[2 * p + 1] / kRoot);
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
#endif  // DSV_HADAMARD_CUH
