// Pooling tokens: softmax over rows and weighted sum, per channel, in float32.
//
// A warp pools kWarpChannels channels of all rows, a lane 4 of them in a run of rows; lanes of
// equal channels then merge. Long groups have 8 runs, so that a warp reads 64 bytes of each of 8
// rows at once. What is added to what depends on nothing but the row's number: an entry has the
// same bits however its work is split and wherever its tokens come from; multiply-adds are written
// out (fmaf) so that no compiler chooses them otherwise.
#ifndef DSV_FOLD_CUH
#define DSV_FOLD_CUH
#include "rows.cuh"

constexpr int kRuns = kRows > 16 ? 8 : 1;
constexpr int kRunRows = kRows / kRuns;
constexpr int kBatchRows = kRunRows <= 8 ? kRunRows : 4;  // in registers at once
constexpr int kRunLanes = kWarpSize / kRuns;
constexpr int kWarpChannels = 4 * kRunLanes;

static_assert(kRows % kRuns == 0 && kRunRows % kBatchRows == 0, "rows in whole batches");
static_assert(kDim % kWarpChannels == 0, "channels for whole warps");

// Softmax over any number of tokens, not divided yet.
struct Fold {
    Four top, sum, weighted;
};

__device__ __forceinline__ Fold empty_fold() {
    return {four(minus_infinity()), four(0.0f), four(0.0f)};
}

// exp(a - b); 1 where both are -infinity, whose difference is not a number.
__device__ __forceinline__ float weight_of(float a, float b) {
    return expf(a == b ? 0.0f : a - b);
}

__device__ __forceinline__ Fold merge(const Fold& a, const Fold& b) {
    Fold both;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        float top = fmaxf(a.top.at[c], b.top.at[c]);
        float left = weight_of(a.top.at[c], top), right = weight_of(b.top.at[c], top);
        both.top.at[c] = top;
        both.sum.at[c] = fmaf(a.sum.at[c], left, b.sum.at[c] * right);
        both.weighted.at[c] = fmaf(a.weighted.at[c], left, b.weighted.at[c] * right);
    }
    return both;
}

__device__ __forceinline__ Fold shuffle_xor(const Fold& fold, int lanes) {
    Fold other;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        other.top.at[c] = __shfl_xor_sync(kFullWarp, fold.top.at[c], lanes);
        other.sum.at[c] = __shfl_xor_sync(kFullWarp, fold.sum.at[c], lanes);
        other.weighted.at[c] = __shfl_xor_sync(kFullWarp, fold.weighted.at[c], lanes);
    }
    return other;
}

__device__ __forceinline__ Four pooled_of(const Fold& fold) {
    Four pooled;
#pragma unroll
    for (int c = 0; c < 4; ++c) pooled.at[c] = fold.weighted.at[c] / fold.sum.at[c];
    return pooled;
}

// Folds one batch of rows into 4 channels.
__device__ __forceinline__ void fold_batch(Fold& fold, const Four* kv, const Four* score) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        float top = fold.top.at[c], sum = 0.0f, weighted = 0.0f;
#pragma unroll
        for (int i = 0; i < kBatchRows; ++i) top = fmaxf(top, score[i].at[c]);
#pragma unroll
        for (int i = 0; i < kBatchRows; ++i) {
            float weight = weight_of(score[i].at[c], top);
            sum += weight;
            weighted = fmaf(weight, kv[i].at[c], weighted);
        }
        float kept = weight_of(fold.top.at[c], top);
        fold.top.at[c] = top;
        fold.sum.at[c] = fmaf(fold.sum.at[c], kept, sum);
        fold.weighted.at[c] = fmaf(fold.weighted.at[c], kept, weighted);
    }
}

// Folds all rows of this lane's 4 channels; `column` is the first of the warp's channels. Every
// lane of the warp takes part; the first kRunLanes return the fold. kUnroll: batches whose loads
// may be under way at once, as far as registers go. kAhead: those of a batch are, all of them.
template <bool kInChunk, int kUnroll, bool kAhead>
__device__ __forceinline__ Fold fold_rows(const Rows& rows, int column) {
    int first = lane_id() / kRunLanes * kRunRows;
    column += lane_id() % kRunLanes * 4;
    Fold fold = empty_fold();
#pragma unroll kUnroll
    for (int batch = 0; batch < kRunRows; batch += kBatchRows) {
        Four kv[kBatchRows], score[kBatchRows];
#pragma unroll
        for (int i = 0; i < kBatchRows; ++i) {
            load_row<kInChunk, kAhead>(rows, first + batch + i, column, kv[i], score[i]);
        }
        if (kAhead) dsv_loads_issued();
#pragma unroll
        for (int i = 0; i < kBatchRows; ++i) {
            prepare_row<kInChunk>(rows, first + batch + i, column, kv[i], score[i]);
        }
        fold_batch(fold, kv, score);
    }
#pragma unroll
    for (int lanes = kRunLanes; lanes < kWarpSize; lanes *= 2) {
        fold = merge(fold, shuffle_xor(fold, lanes));
    }
    return fold;
}

// A slot's online state, [3, kDim], at this lane's 4 channels from `column` on.
__device__ __forceinline__ Fold load_fold(const float* state, int column) {
    return {cached_four(state + column), cached_four(state + kDim + column),
            cached_four(state + 2 * kDim + column)};
}
__device__ __forceinline__ void store_fold(float* state, int column, const Fold& fold) {
    store_four(state + column, fold.top);
    store_four(state + kDim + column, fold.sum);
    store_four(state + 2 * kDim + column, fold.weighted);
}
#endif  // DSV_FOLD_CUH
