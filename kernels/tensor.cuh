// Products of small matrices by the tensor cores, a warp each; sums in float32.
//
// Lane 4 g + t of a warp holds rows g and g + 8 of A (a[0], a[2] and a[1], a[3]) and column g of B:
// words t and t + 4 of each row's 8 words, four e4m3 or two bf16 a word. Which channels stand in
// which word is up to the caller, as long as A and B agree. Of the sums it holds rows g (d[0], d[1])
// and g + 8 (d[2], d[3]), columns 2 t and 2 t + 1. ("Matrix fragments for mma.m16n8k16" and
// "mma.m16n8k32" in the PTX ISA.)
#pragma once
#include "async.cuh"

#if defined(DSV_SHIM)
__device__ __forceinline__ void mma_bf16(float* d, const u32* a, const u32* b) {
    dsv::multiply<dsv::Bf16>(d, a, b);
}
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(u32* words, const void* row) {
    dsv::load_matrices<kTransposed>(words, row);
}
#else
__device__ __forceinline__ void mma_bf16(float* d, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 rows of 8 bf16 in shared memory; lanes 8 m .. 8 m + 7 give the addresses of the
// rows of matrix m, multiples of 16. Lane 4 g + t gets of each elements 2 t and 2 t + 1 of row g;
// transposed, element g of rows 2 t and 2 t + 1. ("ldmatrix")
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(u32* words, const void* row) {
    if constexpr (kTransposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(shared_address(row))
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(shared_address(row))
                     : "memory");
    }
}
#endif

// Of e4m3 by tensor cores that do not know them, as bf16, which holds each of them exactly.
__device__ __forceinline__ void mma_e4m3_as_bf16(float* d, const u32* a, const u32* b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of a row: the four e4m3 of a word are two words of bf16
        u32 left[4], right[2];
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            left[2 * pair] = e4m3_pair_to_bf16(a[2 * half], pair);
            left[2 * pair + 1] = e4m3_pair_to_bf16(a[2 * half + 1], pair);
            right[pair] = e4m3_pair_to_bf16(b[half], pair);
        }
        mma_bf16(d, left, right);
    }
}

// An instruction of its own on sm_89 and sm_120. For sm_90 and sm_100 the compiler makes two products of
// f16 of it, for their tensor cores take e4m3 from shared memory only (wgmma, tcgen05).
__device__ __forceinline__ void mma_e4m3(float* d, const u32* a, const u32* b) {
#if defined(DSV_SHIM)
    dsv::multiply<dsv::E4m3>(d, a, b);
#elif __CUDA_ARCH__ >= 890
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_e4m3_as_bf16(d, a, b);
#endif
}
