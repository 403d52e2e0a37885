// The places of the k largest of each row, exactly: of equals the first, in ascending order.
//
// A block finds the k-th largest of its run of a row in three rounds, each by a histogram of 11 bits
// of an order-preserving number, then writes what is above it, and as many of its equals as are
// missing. A row that is long is several runs, whose choices a second kernel chooses from: in the
// order of the row, so equals stay in order.
#pragma once
#include "common.cuh"

constexpr int kThreads = 1024, kWarps = kThreads / kWarpSize;
constexpr int kBits = 11, kBins = 1 << kBits, kBinsPerThread = kBins / kThreads;
constexpr u32 kNone = 0;  // what is not there: below every number, -infinity too

// Larger where the float is; -0 is 0. Not for NaN.
__device__ __forceinline__ u32 ordered(float value) {
    u32 bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Shared {
    int bins[kBins];
    int warp_sums[kWarps][2];
    u32 least;  // so far: the first bits of the k-th largest
    int wanted;  // of those that begin with these bits
};

// Calls each(i, key(i)) for keys 0 .. count - 1: a warp takes a run of them, in ascending order, all
// its lanes together, kNone beyond the end. Keys are read several at once.
template <typename Key, typename Each>
__device__ __forceinline__ void each_of_run(int count, Key key, Each each) {
    constexpr int kAtOnce = 8;
    int warp = threadIdx.x / kWarpSize, per_warp = (count + kThreads - 1) / kThreads * kWarpSize;
    int begin = min(warp * per_warp, count), end = min(begin + per_warp, count);
#pragma unroll 1
    for (int first = begin + lane_id(); first < end + lane_id(); first += kAtOnce * kWarpSize) {
        u32 keys[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            int at = first + i * kWarpSize;
            keys[i] = at < end ? key(at) : kNone;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) each(first + i * kWarpSize, keys[i]);
    }
}

// What warps before this one have left in warp_sums, and all.
struct Sums {
    int before, all;
};
__device__ __forceinline__ Sums sum_warps(const Shared& shared, int which) {
    int own = lane_id() < kWarps ? shared.warp_sums[lane_id()][which] : 0, end = scan_lanes(own);
    return {__shfl_sync(kFullWarp, end - own, threadIdx.x / kWarpSize),
            __shfl_sync(kFullWarp, end, kWarpSize - 1)};
}

// Counts keys that begin as shared.least does, down to bit `above`, by the bits that follow, and
// moves on to those of the bin that holds the wanted-th largest.
template <typename Key>
__device__ __forceinline__ void narrow(int count, Key key, int above, Shared& shared) {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) shared.bins[bin] = 0;
    __syncthreads();
    int wanted = shared.wanted, shift = max(above - kBits, 0);
    u32 begins = shared.least, mask = (1u << (above - shift)) - 1;
    each_of_run(count, key, [&](int, u32 k) {
        bool counts = k != kNone && (above == 32 || k >> above == begins >> above);
        if (counts) atomicAdd(&shared.bins[k >> shift & mask], 1);
    });
    __syncthreads();
    // Thread t has bins from the top down, so that a running sum counts what is at least as large.
    int first = kBins - 1 - int(threadIdx.x) * kBinsPerThread, own = 0;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) own += shared.bins[first - i];
    int sum = scan_lanes(own), warp = threadIdx.x / kWarpSize;
    if (lane_id() == kWarpSize - 1) shared.warp_sums[warp][0] = sum;
    __syncthreads();
    sum += sum_warps(shared, 0).before;
    int before = sum - own;
    if (before < wanted && wanted <= sum) {  // one thread; none if there are fewer
        int bin = first;
        for (; before + shared.bins[bin] < wanted; --bin) before += shared.bins[bin];
        shared.least = begins | u32(bin) << shift;
        shared.wanted = wanted - before;
    }
    __syncthreads();
}

// Writes the places of the `wanted` largest of keys 0 .. count - 1, ascending, each `base` further
// on, then -1; wanted is not 0. By a block.
template <typename Key>
__device__ __forceinline__ void choose_largest(int count, int wanted, int base, Key key,
                                               int* places, Shared& shared) {
    if (threadIdx.x == 0) shared.least = kNone, shared.wanted = wanted;
    __syncthreads();
#pragma unroll 1
    for (int above = 32; above > 0; above -= kBits) narrow(count, key, above, shared);
    u32 least = shared.least;
    int equals_wanted = shared.wanted;
    int larger = 0, equal = 0, warp = threadIdx.x / kWarpSize;
    each_of_run(count, key, [&](int, u32 k) {
        larger += k > least;
        equal += k == least && k != kNone;
    });
    larger = sum_lanes(larger), equal = sum_lanes(equal);
    if (lane_id() == 0) shared.warp_sums[warp][0] = larger, shared.warp_sums[warp][1] = equal;
    __syncthreads();
    Sums of_larger = sum_warps(shared, 0), of_equal = sum_warps(shared, 1);
    int larger_before = of_larger.before, equal_before = of_equal.before;
    u32 lower = (1u << lane_id()) - 1;
    each_of_run(count, key, [&](int i, u32 k) {
        u32 above = __ballot_sync(kFullWarp, k > least);
        u32 ties = __ballot_sync(kFullWarp, k == least && k != kNone);
        int tie = equal_before + __popc(ties & lower);
        bool chosen = k > least || (ties >> lane_id() & 1 && tie < equals_wanted);
        int place = larger_before + __popc(above & lower) + min(tie, equals_wanted);
        if (chosen) places[place] = base + i;
        larger_before += __popc(above), equal_before += __popc(ties);
    });
    int chosen = of_larger.all + min(of_equal.all, equals_wanted);
    for (int place = chosen + threadIdx.x; place < wanted; place += kThreads) places[place] = -1;
    __syncthreads();
}

// What the runs of rows have chosen: int32[rows, runs, most], -1 after the last, and their keys.
struct Scratch {
    u32* keys;
    int* places;
};

// Chooses of places 0 .. total - 1 of row blockIdx.x, in this block's run of it: into `out` if that
// is all of the row, otherwise into scratch. Returns whether it is.
template <typename Key>
__device__ __forceinline__ bool choose_of_row(int total, int most, Key key, int* out,
                                              const Scratch& scratch, Shared& shared) {
    int per_run = (total + gridDim.y - 1) / gridDim.y;
    int begin = min(int(blockIdx.y) * per_run, total), count = min(per_run, total - begin);
    i64 own = ((i64)blockIdx.x * gridDim.y + blockIdx.y) * most;
    bool all = gridDim.y == 1;
    int* places = all ? out : scratch.places + own;
    auto from_begin = [&](int i) { return key(begin + i); };
    choose_largest(count, most, begin, from_begin, places, shared);
#pragma unroll 1
    for (int i = all ? most : threadIdx.x; i < most; i += kThreads) {
        scratch.keys[own + i] = places[i] < 0 ? kNone : key(places[i]);
    }
    return all;
}

// Chooses of what the runs of row blockIdx.x have chosen.
__device__ __forceinline__ void choose_of_runs(int runs, int most, int* out,
                                               const Scratch& scratch, Shared& shared) {
    i64 own = (i64)blockIdx.x * runs * most;
    auto key = [&](int i) { return scratch.keys[own + i]; };
    choose_largest(runs * most, most, 0, key, out, shared);
#pragma unroll 1
    for (int i = threadIdx.x; i < most; i += kThreads) {
        if (out[i] >= 0) out[i] = scratch.places[own + out[i]];
    }
    __syncthreads();
}
