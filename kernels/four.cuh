// Four float32, as they are loaded and stored.
#pragma once
#include "common.cuh"

struct alignas(16) Four {
    float at[4];
};

__device__ __forceinline__ Four four(float value) { return {{value, value, value, value}}; }

__device__ __forceinline__ Four four_of(uint4 v) {
    return {{__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
             __uint_as_float(v.w)}};
}

// Streamed: read once. The address is a multiple of 16 bytes.
__device__ __forceinline__ Four load_four(const float* address) {
    return four_of(dsv_load<uint4>(address));
}

__device__ __forceinline__ Four load_four_ahead(const float* address) {
    return four_of(dsv_load_ahead(address));
}

// Cached: parameters that every entry reads, and states that were written just before.
__device__ __forceinline__ Four cached_four(const float* address) {
    return four_of(*(const uint4*)address);
}
__device__ __forceinline__ uint4 bits_of(const Four& v) {
    return make_uint4(__float_as_uint(v.at[0]), __float_as_uint(v.at[1]),
                      __float_as_uint(v.at[2]), __float_as_uint(v.at[3]));
}
// To global memory; states are read again soon.
__device__ __forceinline__ void store_four(float* address, const Four& v) {
    dsv_write(address, bits_of(v));
}

__device__ __forceinline__ Four add(Four a, const Four& b) {
#pragma unroll
    for (int c = 0; c < 4; ++c) a.at[c] += b.at[c];
    return a;
}
