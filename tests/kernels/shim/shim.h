// CPU twin of the CUDA sources: the same file compiled by a C++ compiler, block by block, with a
// fiber for every thread so that barriers and shuffles really synchronise. Test-only.
// This header is all that a kernel is compiled with, many times; runtime.cc runs its blocks and is
// compiled once.
//
// What is checked that a GPU would not tell: out-of-range accesses (AddressSanitizer), misaligned
// vector accesses (asserted in dsv_load / dsv_store), barriers that not every thread reaches, and
// missing barriers (run once more with the fibers in another order).
//
// The blocks of a cluster run together, one as far as it comes before the next has its turn. Each has
// shared memory of its own, which no thread has written at first; so they use dynamic shared memory
// only (dynamic_shared in async.cuh). Copies arrive as late as they may: when somebody waits for them;
// until then their target is poison.
//
// Tensor cores: products are exact, and the sum of a fragment's row with the accumulator is taken in
// double, in the order of k, and rounded once. A GPU sums in an order and with a width of its own (PTX
// ISA, "mma": at least single precision for bf16; of 8-bit floats fewer bits, arXiv 2512.07004), so
// tests of what sums give have a tolerance. Products of a warpgroup read shared memory when they are
// begun, or in another order of threads as late as they may: when somebody waits for them. Whether a
// thread showed them what it wrote (fence.proxy.async) is not checked.
#pragma once

#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // C's <math.h>: most of a kernel's compile time was C++'s
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <initializer_list>

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static thread_local  // one OS thread runs a whole block, but not a cluster

struct dsv_dim3 {
    unsigned x, y, z;
};
struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

#define DSV_OWN extern __thread __attribute__((visibility("hidden")))  // of this library and thread
DSV_OWN dsv_dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace dsv {

enum class At {
    kRunning,
    kWarpBarrier,
    kBlockBarrier,
    kNamedBarrier,
    kClusterBarrier,
    kBytes,
    kDone
};

// What a thread gave the other lanes of its warp: how often so far, and in the last two of them.
struct Lane {
    unsigned exchanges;
    unsigned exchange[2][10];
};

// The threads that run together, how many they are, and whose turn it is.
DSV_OWN Lane* lanes;
DSV_OWN int together, current;

void fail(const char* what);
void yield_at(At at);

// ---- Clusters
unsigned current_rank();
void* dynamic_shared();
void* mapped(const void* shared, unsigned rank);  // where a shared variable is in the block of a rank
void cluster_arrive();
void cluster_wait();

// ---- Bulk copies
void start_barrier(const void* barrier, int threads);
void expect_bytes(const void* barrier, unsigned bytes);  // by a thread that arrives
void copy_bytes(void* target, const void* source, unsigned bytes, const void* barrier);
void send(void* target, const void* value, unsigned bytes, const void* barrier);
void wait_bytes(const void* barrier, unsigned phase);

// ---- Copies of a thread's own
void copy_async(void* target, const void* source, unsigned bytes);  // source null: zeros
void close_group();
void wait_groups(unsigned under_way);

// ---- Tensor cores: D += A B, and four matrices of 8 rows of 16 bytes
struct Bf16;
template <typename Type>
void multiply(float* d, const unsigned* a, const unsigned* b);
template <bool kTransposed>
void load_matrices(unsigned* words, const void* row);

// ---- Warpgroups: D += A B of matrices in shared memory, and barriers that threads come to
void multiply_group(float* d, unsigned long long a, unsigned long long b, int columns,
                    bool by_columns);
void begin_products();
void close_products();
void wait_products(unsigned under_way);
void named_sync(int barrier, int threads);
void named_arrive(int barrier, int threads);

}  // namespace dsv

static inline void __syncthreads() { dsv::yield_at(dsv::At::kBlockBarrier); }
static inline void __syncwarp(unsigned = 0xffffffffu) { dsv::yield_at(dsv::At::kWarpBarrier); }

// What every lane of a warp gives at once. Two places take turns: before one is written again, all
// have met for the other, so one barrier is enough.
struct Exchange {
    int first = dsv::current & ~31;
    int count = min(32, dsv::together - first);
    dsv::Lane* lanes = dsv::lanes + first;
    unsigned number;
    explicit Exchange(std::initializer_list<unsigned> words) {
        dsv::Lane& own = lanes[dsv::current & 31];
        number = own.exchanges++;
        unsigned* given = own.exchange[number & 1];
        for (unsigned word : words) *given++ = word;
        __syncwarp();
    }
    bool has(int lane) const { return lane < count && lanes[lane].exchanges > number; }
    const unsigned* given(int lane) const { return lanes[lane].exchange[number & 1]; }
    unsigned operator[](int lane) const { return *given(lane); }
};

template <typename T>
static inline T __shfl_sync(unsigned, T value, int source_lane, int = 32) {
    static_assert(sizeof(T) == 4, "shuffles move 32 bits");
    unsigned bits;
    memcpy(&bits, &value, 4);
    bits = Exchange({bits})[source_lane & 31];
    memcpy(&value, &bits, 4);
    return value;
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    return __shfl_sync(mask, value, (dsv::current & 31) ^ lane_mask, width);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    int lane = dsv::current & 31;
    T moved = __shfl_sync(mask, value, lane >= int(delta) ? lane - int(delta) : lane, width);
    return lane >= int(delta) ? moved : value;
}
static inline unsigned __ballot_sync(unsigned, int predicate) {
    Exchange given({unsigned(predicate != 0)});
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane) votes |= given.has(lane) ? given[lane] << lane : 0;
    return votes;
}

static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        result |= unsigned(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    }
    return result;
}

static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
static inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
static inline void sincospif(float half_turns, float* sine, float* cosine) {
    *sine = float(sin(M_PI * half_turns));
    *cosine = float(cos(M_PI * half_turns));
}
static inline float __fdividef(float a, float b) { return a / b; }
template <typename T>
static inline T atomicAdd(T* where, T value) {
    return __atomic_fetch_add(where, value, __ATOMIC_RELAXED);
}
template <typename T>
static inline T atomicOr(T* where, T value) {
    return __atomic_fetch_or(where, value, __ATOMIC_RELAXED);
}
static inline unsigned atomicInc(unsigned* where, unsigned most) {
    unsigned before = __atomic_load_n(where, __ATOMIC_RELAXED), after;
    do {
        after = before >= most ? 0 : before + 1;
    } while (!__atomic_compare_exchange_n(where, &before, after, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return before;
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
