// Attention in parts, by attend.cuh: the sums of blocks that share a token.
#include "four.cuh"
#include "softmax.cuh"

constexpr int kDims = 512;

// Merges what blocks found of a token and a group of heads (see attention.cuh's Parts); a block a few
// of the heads, four channels a thread.
DSV_KERNEL void __launch_bounds__(kDims / 4)
    merge_parts(const float* scratch, const Result* results, const int* parts, const float* sinks,
                u8* out, float* lse, int heads, int group) {
    begin_kernel();
    int begun = parts[2 * blockIdx.x], count = parts[2 * blockIdx.x + 1];
    int groups = (heads + group - 1) / group, token = blockIdx.x / groups;
    int first_head = blockIdx.x % groups * group;
#pragma unroll 1
    for (int row = blockIdx.y; count && row < min(group, heads - first_head); row += gridDim.y) {
        auto place = [&](int p) { return (i64)(p ? (begun & ~1) + 2 * p : begun) * group + row; };
        Result merged = {minus_infinity(), 0.0f};
        for (int p = 0; p < count; ++p) merged.top = fmaxf(merged.top, results[place(p)].top);
        Four sums = four(0.0f);
#pragma unroll 4
        for (int p = 0; p < count; ++p) {
            Result result = results[place(p)];
            float weight = weight_of(result.top, merged.top);
            Four part = load_four(scratch + place(p) * kDims + threadIdx.x * 4);
            merged.sum = fmaf(weight, result.sum, merged.sum);
#pragma unroll
            for (int c = 0; c < 4; ++c) sums.at[c] = fmaf(weight, part.at[c], sums.at[c]);
        }
        i64 at = (i64)token * heads + first_head + row;
        float share = share_of(merged, sinks[first_head + row]);
        uint2 pairs = make_uint2(pack_bf16(sums.at[0] * share, sums.at[1] * share),
                                 pack_bf16(sums.at[2] * share, sums.at[3] * share));
        dsv_write(out + (at * kDims + threadIdx.x * 4) * 2, pairs);
        if (threadIdx.x == 0) lse[at] = lse_of(merged);
    }
}
