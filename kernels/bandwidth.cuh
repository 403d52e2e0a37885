// Peaks of plain copying, reading and writing, with the very accesses that the cache kernels use.
#include "common.cuh"

constexpr int kInFlight = 8;  // 16-byte accesses of a thread

// Loads chunks first, first + stride, ...; beyond the last one, the last: no branch in between.
__device__ __forceinline__ void load_batch(const u8* source, i64 first, i64 stride, i64 chunks,
                                           uint4* values) {
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
        i64 i = first + u * stride;
        values[u] = dsv_load<uint4>(source + (i < chunks ? i : chunks - 1) * 16);
    }
}

// Copies chunks of 16 bytes; source and target do not overlap.
DSV_KERNEL void __launch_bounds__(256, 4) copy_peak(const u8* source, u8* target, i64 chunks) {
    begin_kernel();
    i64 stride = thread_count();
    for (i64 first = thread_id(); first < chunks; first += kInFlight * stride) {
        uint4 values[kInFlight];
        load_batch(source, first, stride, chunks, values);
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
            i64 i = first + u * stride;
            if (i < chunks) dsv_store(target + i * 16, values[u]);
        }
    }
}

// Reads chunks of 16 bytes; sums: u32[threads], of all words a thread has read.
DSV_KERNEL void __launch_bounds__(256, 4) read_peak(const u8* source, u32* sums, i64 chunks) {
    begin_kernel();
    i64 stride = thread_count();
    u32 sum = 0;
    for (i64 first = thread_id(); first < chunks; first += kInFlight * stride) {
        uint4 values[kInFlight];
        load_batch(source, first, stride, chunks, values);
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
            uint4 v = values[u];
            if (first + u * stride < chunks) sum += v.x + v.y + v.z + v.w;
        }
    }
    sums[thread_id()] = sum;
}

// Writes chunks of 16 bytes, each word the low half of its chunk's number.
DSV_KERNEL void __launch_bounds__(256, 4) write_peak(u8* target, i64 chunks) {
    begin_kernel();
    for (i64 i = thread_id(); i < chunks; i += thread_count()) {
        u32 word = u32(i);
        dsv_store(target + i * 16, make_uint4(word, word, word, word));
    }
}

// Does nothing: what a node of a graph takes whatever it does. place is the GPU's, and not touched.
DSV_KERNEL void do_nothing(const u8* place) {
    begin_kernel();
    (void)place;
}
