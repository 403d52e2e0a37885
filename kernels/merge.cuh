// Attention in parts, by attend.cuh: the sums of blocks that share a token.
#include "four.cuh"
#include "softmax.cuh"

constexpr int kDims = 512;

// Merges what blocks that share a token found; a block a token and head, four channels a thread.
DSV_KERNEL void __launch_bounds__(kDims / 4)
    merge_parts(const float* scratch, const Result* results, const float* sinks, u8* out,
                float* lse, int parts, int heads) {
    begin_kernel();
    int token = blockIdx.x / heads, head = blockIdx.x % heads;
    i64 first = (i64)token * parts * heads + head;
    Result merged = {minus_infinity(), 0.0f};
    for (int p = 0; p < parts; ++p) merged.top = fmaxf(merged.top, results[first + p * heads].top);
    Four sums = four(0.0f);
#pragma unroll 4
    for (int p = 0; p < parts; ++p) {
        Result result = results[first + p * heads];
        float weight = weight_of(result.top, merged.top);
        Four part = load_four(scratch + (first + p * heads) * kDims + threadIdx.x * 4);
        merged.sum = fmaf(weight, result.sum, merged.sum);
#pragma unroll
        for (int c = 0; c < 4; ++c) sums.at[c] = fmaf(weight, part.at[c], sums.at[c]);
    }
    float share = share_of(merged, sinks[head]);
    uint2 pairs = make_uint2(pack_bf16(sums.at[0] * share, sums.at[1] * share),
                             pack_bf16(sums.at[2] * share, sums.at[3] * share));
    dsv_write(out + ((i64)blockIdx.x * kDims + threadIdx.x * 4) * 2, pairs);
    if (threadIdx.x == 0) lse[blockIdx.x] = lse_of(merged);
}
