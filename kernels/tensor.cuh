// Products of small matrices by the tensor cores, a warp each; sums in float32.
//
// Lane 4 g + t of a warp holds rows g and g + 8 of A (a[0], a[2] and a[1], a[3]) and column g of B:
// words t and t + 4 of each row's 8 words, two numbers a word. Which channels stand in which word is
// up to the caller, as long as A and B agree. Of the sums it holds rows g (d[0], d[1])
// and g + 8 (d[2], d[3]), columns 2 t and 2 t + 1. ("Matrix fragments for mma.m16n8k16" in the
// PTX ISA.)
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

// Two of four e4m3 as 16-bit products take them, exactly: f16 where an instruction unpacks them, else
// bf16. (Tensor cores of sm_90 and sm_100 take e4m3 as they are from shared memory only; of a product
// of e4m3 in registers the compiler makes these two, and unpacks for each anew.)
#if !defined(DSV_SHIM) && __CUDA_ARCH__ >= 890
__device__ __forceinline__ u32 unpack_e4m3(u32 word, int pair) {
    u32 halves;
    if (pair) {
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }"
            : "=r"(halves) : "r"(word));
    } else {
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }"
            : "=r"(halves) : "r"(word));
    }
    return halves;
}
__device__ __forceinline__ void mma_unpacked(float* d, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
__device__ __forceinline__ u32 unpack_e4m3(u32 word, int pair) { return e4m3_pair_to_bf16(word, pair); }
__device__ __forceinline__ void mma_unpacked(float* d, const u32* a, const u32* b) { mma_bf16(d, a, b); }
#endif
