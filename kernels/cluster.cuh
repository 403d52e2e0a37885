// Blocks of a cluster, which see each other's shared memory, and copies that go on by themselves:
// from sm_90 on.
//
// A ByteBarrier (mbarrier) shows when so many threads have arrived, and all bytes that they said would
// come: whoever needs that waits. That ends a turn, and the next one begins.
#pragma once
#include "async.cuh"

typedef unsigned long long ByteBarrier;  // in shared memory

#if defined(DSV_SHIM)
__device__ __forceinline__ int cluster_rank() { return (int)dsv::current_rank(); }
__device__ __forceinline__ void cluster_begin() { dsv::cluster_arrive(); }
__device__ __forceinline__ void cluster_arrive() { dsv::cluster_arrive(); }
__device__ __forceinline__ void cluster_wait() { dsv::cluster_wait(); }
__device__ __forceinline__ void store_to(void* shared, int rank, uint4 v) {
    dsv_store(dsv::mapped(shared, rank), v);
}
__device__ __forceinline__ u32 address_at(const void* shared, int rank) {
    return u32(rank) << 24 | shared_address(shared);
}
__device__ __forceinline__ void* place_at(u32 address) {
    return dsv::mapped((u8*)dynamic_shared() + (address & 0xffffff), address >> 24);
}
template <typename T>
__device__ __forceinline__ void send(u32 there, T v, u32 barrier) {
    dsv::send(place_at(there), &v, sizeof v, place_at(barrier));
}
__device__ __forceinline__ void start_barriers(ByteBarrier* barriers, int count, int threads) {
    for (int i = 0; i < count; ++i) dsv::start_barrier(barriers + i, threads);
}
__device__ __forceinline__ void expect_bytes(ByteBarrier* barriers, int count, u32 bytes) {
    for (int i = 0; i < count; ++i) dsv::expect_bytes(barriers + i, bytes);
}
__device__ __forceinline__ void arrive_at(u32 barrier) { dsv::expect_bytes(place_at(barrier), 0); }
__device__ __forceinline__ void copy_bytes(void* shared, const void* source, u32 bytes,
                                           ByteBarrier* barrier) {
    dsv::copy_bytes(shared, source, bytes, barrier);
}
__device__ __forceinline__ void wait_bytes(ByteBarrier* barrier) { dsv::wait_bytes(barrier, 0); }
__device__ __forceinline__ void wait_turn(ByteBarrier* barrier, int turn) {
    dsv::wait_bytes(barrier, turn & 1);
}
#else
// This block's number in its cluster.
__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Every thread of every block arrives, then waits: by then every block has begun, and what all wrote
// before they arrived is seen. cluster_begin arrives, too, for threads that have written nothing.
__device__ __forceinline__ void cluster_begin() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// To the place of a variable of this block in the block of a rank.
__device__ __forceinline__ void store_to(void* shared, int rank, uint4 v) {
    asm volatile(
        "{\n"
        ".reg .u32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "st.shared::cluster.v4.u32 [there], {%2, %3, %4, %5};\n"
        "}" ::"r"(shared_address(shared)),
        "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}

// The address of that place; others of the same block are as far from it as they are here.
__device__ __forceinline__ u32 address_at(const void* shared, int rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(shared)), "r"(rank));
    return there;
}
// Starts to store 4 or 16 bytes, which arrive at a barrier of the same block.
__device__ __forceinline__ void send(u32 there, int v, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
                 "r"(v), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void send(u32 there, uint4 v, u32 barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            there),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
        : "memory");
}

// One thread, before all others go on, of a cluster's barrier before others of the cluster do.
__device__ __forceinline__ void start_barriers(ByteBarrier* barriers, int count, int threads) {
    u32 address = shared_address(barriers);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address + i * 8), "r"(threads)
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // copies see them
}

// A thread arrives: so many bytes come in this turn.
__device__ __forceinline__ void expect_bytes(ByteBarrier* barriers, int count, u32 bytes) {
    u32 address = shared_address(barriers);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address + i * 8),
                     "r"(bytes)
                     : "memory");
    }
}
// It arrives at a barrier of any block; no bytes come. What it read may be written then; what it wrote
// the other block need not see.
__device__ __forceinline__ void arrive_at(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Starts a copy into this block; addresses and size are multiples of 16 bytes.
__device__ __forceinline__ void copy_bytes(void* shared, const void* source, u32 bytes,
                                           ByteBarrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(shared)),
        "l"(source), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Until the first turn ends; or one of several, 0, 1, ..., which other blocks take part in. What arrived is
// seen by the thread that waits.
__device__ __forceinline__ void wait_bytes(ByteBarrier* barrier) {
    asm volatile(
        "{\n"
        ".reg .pred arrived;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 arrived, [%0], 0;\n"
        "@!arrived bra AGAIN;\n"
        "}" ::"r"(shared_address(barrier))
        : "memory");
}
__device__ __forceinline__ void wait_turn(ByteBarrier* barrier, int turn) {
    asm volatile(
        "{\n"
        ".reg .pred arrived;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 arrived, [%0], %1;\n"
        "@!arrived bra AGAIN;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(turn & 1)
        : "memory");
}
#endif
