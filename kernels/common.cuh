// What every kernel shares: vector access and thread numbering. Header-free: NVRTC compiles this
// without a single include, and a C++ compiler compiles it for the CPU tests (DSV_SHIM).
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// Kernels are looked up by their plain name.
#define DSV_KERNEL extern "C" __global__

constexpr int kWarpSize = 32;
constexpr u32 kFullWarp = 0xffffffffu;

// The first statement of every kernel. One that was launched as dependent has begun while the kernel
// before it in the stream still runs: here it waits until that one is done and what it wrote can be
// seen. Only then may the next one begin: so no other kernel than the one before this one is ever
// under way, and no line that a third has changed can be in any L1. Launched otherwise, or
// before sm_90, there is nothing to wait for.
__device__ __forceinline__ void begin_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ int lane_id() { return threadIdx.x & (kWarpSize - 1); }

// Sum of lanes 0 .. this one. Every lane takes part, here and below.
__device__ __forceinline__ int scan_lanes(int sum) {
#pragma unroll
    for (int delta = 1; delta < kWarpSize; delta *= 2) {
        int below = __shfl_up_sync(kFullWarp, sum, delta);
        if (lane_id() >= delta) sum += below;
    }
    return sum;
}

// Sum, and largest number, of all lanes.
template <typename T>
__device__ __forceinline__ T sum_lanes(T sum) {
#pragma unroll
    for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
        sum += __shfl_xor_sync(kFullWarp, sum, lanes);
    }
    return sum;
}
__device__ __forceinline__ int most_of_lanes(int most) {
#pragma unroll
    for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
        most = max(most, __shfl_xor_sync(kFullWarp, most, lanes));
    }
    return most;
}

// Number of this warp in the grid and of all warps: kernels stride over their work by warps.
__device__ __forceinline__ i64 warp_id() {
    return ((i64)blockIdx.x * blockDim.x + threadIdx.x) / kWarpSize;
}
__device__ __forceinline__ i64 warp_count() { return (i64)gridDim.x * blockDim.x / kWarpSize; }
__device__ __forceinline__ i64 thread_id() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 thread_count() { return (i64)gridDim.x * blockDim.x; }

// dsv_load: data that is read once (past L1) and that this kernel does not write; dsv_store: data
// that is not read again soon; dsv_write: data that is. T is u32, uint2 or uint4; the address is
// aligned to its size.
//
// dsv_load_ahead: the same for loads that are to be under way together: all of them are issued
// before dsv_loads_issued, whatever the compiler thinks of the registers. It moves ordinary loads
// down to where they are used, volatile ones too, but no relaxed one past a fence; and a fence
// within a block costs no more than the wait that follows anyhow.
#if defined(DSV_SHIM)
template <typename T>
__device__ __forceinline__ T dsv_load(const void* address) {
    if ((unsigned long)address % sizeof(T)) dsv::fail("misaligned vector load");
    return *(const T*)address;
}
__device__ __forceinline__ uint4 dsv_load_ahead(const void* address) {
    return dsv_load<uint4>(address);
}
__device__ __forceinline__ void dsv_loads_issued() {}
template <typename T>
__device__ __forceinline__ void dsv_store(void* address, T value) {
    if ((unsigned long)address % sizeof(T)) dsv::fail("misaligned vector store");
    *(T*)address = value;
}
template <typename T>
__device__ __forceinline__ void dsv_write(void* address, T value) {
    dsv_store(address, value);
}
#else
template <typename T>
__device__ __forceinline__ T dsv_load(const void* address);
template <>
__device__ __forceinline__ u32 dsv_load<u32>(const void* address) {
    u32 v;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(address));
    return v;
}
template <>
__device__ __forceinline__ uint2 dsv_load<uint2>(const void* address) {
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
        : "=r"(v.x), "=r"(v.y)
        : "l"(address));
    return v;
}
template <>
__device__ __forceinline__ uint4 dsv_load<uint4>(const void* address) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(address));
    return v;
}
__device__ __forceinline__ uint4 dsv_load_ahead(const void* address) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}
__device__ __forceinline__ void dsv_loads_issued() {
    asm volatile("fence.acq_rel.cta;" ::: "memory");
}
__device__ __forceinline__ void dsv_store(void* address, u32 v) {
    asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void dsv_store(void* address, uint2 v) {
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(v.x), "r"(v.y)
                 : "memory");
}
__device__ __forceinline__ void dsv_store(void* address, uint4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
template <typename T>
__device__ __forceinline__ void dsv_write(void* address, T value) {
    *(T*)address = value;
}
// Assembler, for of an assignment the compiler may make four stores.
__device__ __forceinline__ void dsv_write(void* address, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
#endif

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// bf16 in pairs, the first in the low half.
__device__ __forceinline__ float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(u32 pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

// pack_bf16 rounds to nearest even; mul_bf16x2 rounds each exact product once.
#if defined(DSV_SHIM)
__device__ __forceinline__ u32 bf16_bits(float value) {
    u32 bits = __float_as_uint(value);
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    return bf16_bits(low) | bf16_bits(high) << 16;
}
__device__ __forceinline__ u32 mul_bf16x2(u32 a, u32 b) {
    return pack_bf16(bf16_low(a) * bf16_low(b), bf16_high(a) * bf16_high(b));
}
#else
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ u32 mul_bf16x2(u32 a, u32 b) {
    u32 product;  // sm_80 multiplies bf16 only with an addition; x + -0 is x, -0 included
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}
#endif

// Two bf16 of four e4m3, exact: sign, exponent and mantissa bits in place give the value times
// 2^-120, subnormals included.
__device__ __forceinline__ u32 e4m3_pair_to_bf16(u32 word, int pair) {
    u32 v = __byte_perm(word, 0, pair ? 0x3424 : 0x1404);  // one byte on top of each half
    return mul_bf16x2((v & 0x80008000u) | (v >> 4 & 0x07f007f0u), 0x7b807b80u);
}

// Where something is loaded from: global memory that is read once, or this block's shared memory.
// Streamed().load<uint4>(address)
struct Streamed {
    static constexpr bool kBoth = false;  // where lanes load different things: not all of both
    template <typename T>
    __device__ __forceinline__ T load(const void* address) {
        return dsv_load<T>(address);
    }
};
struct Held {
    static constexpr bool kBoth = true;
    template <typename T>
    __device__ __forceinline__ T load(const void* address) {
        return *(const T*)address;
    }
};
