// Kernels that are wrong on purpose: the harness has to notice every one of them.
//
// Compile-time: DSV_BARRIER 0 or 1.
#include "../../../../kernels/common.cuh"  // found from here by NVRTC too

// Each thread copies the 16 bytes of its right neighbour; the last one has none.
DSV_KERNEL void read_outside(const u8* source, u8* target) {
    i64 i = thread_id();
    dsv_store(target + i * 16, dsv_load<uint4>(source + (i + 1) * 16));
}

DSV_KERNEL void write_outside(const u8* source, u8* target) {
    i64 i = thread_id();
    dsv_store(target + (i + 1) * 16, dsv_load<uint4>(source + i * 16));
}

DSV_KERNEL void load_misaligned(const u8* source, u8* target) {
    if (thread_id() == 0) dsv_store(target, dsv_load<uint4>(source + 8));
}

DSV_KERNEL void store_misaligned(const u8* source, u8* target) {
    if (thread_id() == 0) dsv_store(target + 8, dsv_load<uint4>(source));
}

// The shift is undefined for every source but 0..31.
DSV_KERNEL void shift_too_far(const u8* source, u8* target) { target[0] = u8(1 << source[0]); }

// Half of the threads wait for their warp, the others for their block.
DSV_KERNEL void split_at_a_barrier(const u8*, u8*) {
    if (threadIdx.x % 2) {
        __syncthreads();
    } else {
        __syncwarp();
    }
}

// Moves every byte one thread to the right, through shared memory.
DSV_KERNEL void move_right(const u8* source, u8* target) {
    __shared__ u8 shared[64];
    shared[threadIdx.x] = source[threadIdx.x];
#if DSV_BARRIER
    __syncthreads();
#endif
    target[threadIdx.x] = shared[(threadIdx.x + 63) % 64];
}
