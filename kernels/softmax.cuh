// Softmax in parts: of each the largest logarithm, and sums of weights and of weighted values that it
// is taken out of. Logarithms are of base 2.
#pragma once
#include "common.cuh"

// Base 2 of a difference to the top; -infinity is none, and nothing seen yet has no weight either.
__device__ __forceinline__ float weight_of(float value, float top) {
    return top == minus_infinity() ? 0.0f : exp2f(value - top);
}

// Of a head: logarithms are of base 2, the largest one is taken out of sums.
struct Result {
    float top, sum;
};
constexpr float kLog2E = 1.44269504088896340736f;

// What sums are multiplied by in the end; 0 where nothing is seen.
__device__ __forceinline__ float share_of(const Result& result, float sink) {
    if (result.top == minus_infinity()) return 0.0f;
    return 1.0f / (result.sum + exp2f(fmaf(sink, kLog2E, -result.top)));
}
__device__ __forceinline__ float lse_of(const Result& result) {
    if (result.top == minus_infinity()) return -minus_infinity();
    return (result.top + log2f(result.sum)) * (1.0f / kLog2E);
}
