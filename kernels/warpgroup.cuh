// Products of matrices in shared memory by the tensor cores, a warpgroup each (four warps, wgmma), sums
// in float32; and what warps of several roles wait for each other with. sm_90a only.
//
// Matrices lie in panels of 64 bf16: a panel's rows of 128 bytes one after another, 1,024-byte aligned,
// their eight chunks of 16 bytes in the places that panel_place says ("128-byte swizzle"). A product
// takes 16 channels of 64 rows and kColumns columns. Warp w of the group, lane 4 g + t, holds of the
// sums rows 16 w + g (d[n][0], d[n][1]) and 16 w + g + 8 (d[n][2], d[n][3]), columns 8 n + 2 t and one
// more. ("Asynchronous warpgroup level matrix instructions" and "canonical layouts" in the PTX ISA.)
#pragma once
#include "async.cuh"

constexpr int kGroupThreads = 4 * kWarpSize;
constexpr int kPanelRow = 128;  // bytes

__device__ __forceinline__ int panel_place(int row, int chunk) { return chunk ^ (row & 7); }

// A matrix in shared memory. By rows: its first panel, sums are over channels of a row, 16 bf16 or 32
// bytes from here on. By columns: sums are over rows, 16 of them; panels of 64 columns follow one
// another every panel_bytes.
__device__ __forceinline__ u64 matrix_at(const void* shared, int panel_bytes) {
    constexpr u64 kSwizzle128 = 1, kEightRows = 8 * kPanelRow;
    u32 address = shared_address(shared);
    return (u64)(address >> 4 & 0x3fff) | (u64)(panel_bytes >> 4) << 16 | kEightRows >> 4 << 32 |
           kSwizzle128 << 62;
}

// The same so many bytes further on.
__device__ __forceinline__ u64 further(u64 matrix, int bytes) { return matrix + (bytes >> 4); }

#if defined(DSV_SHIM)
template <int kColumns, bool kByColumns>
__device__ __forceinline__ void multiply_group(float (&d)[kColumns / 8][4], u64 a, u64 b) {
    dsv::multiply_group(&d[0][0], a, b, kColumns, kByColumns);
}
__device__ __forceinline__ void begin_products() { dsv::begin_products(); }
__device__ __forceinline__ void close_products() { dsv::close_products(); }
template <int kUnderWay>
__device__ __forceinline__ void wait_products() {
    dsv::wait_products(kUnderWay);
}
__device__ __forceinline__ void show_to_products() {}
__device__ __forceinline__ void sync_threads(int barrier, int threads) {
    dsv::named_sync(barrier, threads);
}
__device__ __forceinline__ void arrive_threads(int barrier, int threads) {
    dsv::named_arrive(barrier, threads);
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {}
#else
#define DSV_SUMS4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define DSV_SUMS16(n) DSV_SUMS4(n), DSV_SUMS4(n + 1), DSV_SUMS4(n + 2), DSV_SUMS4(n + 3)
#define DSV_SUMS64(n) DSV_SUMS16(n), DSV_SUMS16(n + 4), DSV_SUMS16(n + 8), DSV_SUMS16(n + 12)

// D += A B, or A B where B's sums are over its rows; A's are over channels. Between begin_products and
// close_products, and what d holds is known when no more than so many of such groups are under way.
template <int kColumns, bool kByColumns>
__device__ __forceinline__ void multiply_group(float (&d)[kColumns / 8][4], u64 a, u64 b);
template <>
__device__ __forceinline__ void multiply_group<32, false>(float (&d)[4][4], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, 1, 1, 1, 0, 0;"
        : DSV_SUMS16(0)
        : "l"(a), "l"(b));
}
template <>
__device__ __forceinline__ void multiply_group<128, true>(float (&d)[16][4], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 1;"
        : DSV_SUMS64(0)
        : "l"(a), "l"(b));
}
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void close_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kUnderWay>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kUnderWay) : "memory");
}

// What this thread wrote to shared memory: products of those who meet it at a barrier later see it.
__device__ __forceinline__ void show_to_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A barrier 1 ... 15 that so many threads come to, whole warps: some wait for all, others only arrive.
__device__ __forceinline__ void sync_threads(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_threads(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Registers of a thread from here on; those that a warpgroup gives another can take.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
#endif
