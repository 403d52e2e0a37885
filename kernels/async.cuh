// Shared memory whose size a launch says, and copies into it that go on while a thread does something
// else: from sm_80 on.
//
// A thread closes a group of copies, and waits until no more than so many of its groups are under
// way. What arrived is seen by the thread that waits; by others after a barrier.
#pragma once
#include "common.cuh"

#if defined(DSV_SHIM)
__device__ __forceinline__ void* dynamic_shared() { return dsv::dynamic_shared(); }
__device__ __forceinline__ u32 shared_address(const void* shared) {
    return u32((const u8*)shared - (const u8*)dsv::dynamic_shared());
}
template <int kBytes>
__device__ __forceinline__ void copy_async(u32 shared, const void* source, bool there, bool own = true) {
    if (own) dsv::copy_async((u8*)dsv::dynamic_shared() + shared, there ? source : nullptr, kBytes);
}
__device__ __forceinline__ void close_copies() { dsv::close_group(); }
template <int kUnderWay>
__device__ __forceinline__ void wait_copies() {
    dsv::wait_groups(kUnderWay);
}
#else
__device__ __forceinline__ void* dynamic_shared() {
    extern __shared__ __align__(1024) uint4 dsv_shared[];  // as warpgroup.cuh wants matrices
    return dsv_shared;
}

// An address of this block's shared memory as assembler takes it.
__device__ __forceinline__ u32 shared_address(const void* shared) {
    u32 address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
        : "=r"(address)
        : "l"(shared));
    return address;
}

// Copies 4, 8 or 16 bytes, aligned to their number; zeros where there is nothing, which is not read.
// A thread without a copy of its own has none, and takes no branch. 16 bytes go past L1.
template <int kBytes>
__device__ __forceinline__ void copy_async(u32 shared, const void* source, bool there, bool own = true) {
    int size = there ? kBytes : 0;
    if constexpr (kBytes == 16) {
        asm volatile("{ .reg .pred own; setp.ne.s32 own, %3, 0; "
                     "@own cp.async.cg.shared.global [%0], [%1], 16, %2; }" ::"r"(shared),
                     "l"(source), "r"(size), "r"(int(own))
                     : "memory");
    } else {
        asm volatile("{ .reg .pred own; setp.ne.s32 own, %4, 0; "
                     "@own cp.async.ca.shared.global [%0], [%1], %2, %3; }" ::"r"(shared),
                     "l"(source), "n"(kBytes), "r"(size), "r"(int(own))
                     : "memory");
    }
}
__device__ __forceinline__ void close_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kUnderWay>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kUnderWay) : "memory");
}
#endif

template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* source, bool there) {
    copy_async<kBytes>(shared_address(shared), source, there);
}
