// CPU twin of the CUDA sources: the same file compiled by a C++ compiler, block by block, with a
// fiber for every thread so that barriers and shuffles really synchronise. Test-only.
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
// tests of what sums give have a tolerance.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__ static
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

static thread_local dsv_dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace dsv {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 << 10;
constexpr int kPoison = 0xff;  // as floats: NaN
enum class At { kRunning, kWarpBarrier, kBlockBarrier, kClusterBarrier, kBytes, kDone };

// Where a fiber goes on, on a stack of its own.
//
// swapcontext asks the kernel for the signal mask at every switch, which takes ten times as long
// as a switch; where we know how, we do without.
#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void dsv_switch(void** from, void* to);
asm(R"(
.text
.hidden dsv_switch
.globl dsv_switch
.type dsv_switch, @function
dsv_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
.size dsv_switch, .-dsv_switch
.section .note.GNU-stack,"",@progbits
.text
)");
struct Context {
    void* top;
    void start(char* stack, void (*entry)()) {
        // what dsv_switch pops: six registers and where to go; above it an aligned end
        void** place = reinterpret_cast<void**>(stack + kStackBytes) - 8;
        for (int i = 0; i < 8; ++i) place[i] = nullptr;
        place[6] = reinterpret_cast<void*>(entry);
        top = place;
    }
    void leave_for(Context& next) { dsv_switch(&top, next.top); }
};
#else
struct Context {
    ucontext_t state;
    void start(char* stack, void (*entry)()) {
        getcontext(&state);
        state.uc_stack.ss_sp = stack;
        state.uc_stack.ss_size = kStackBytes;
        state.uc_link = nullptr;
        makecontext(&state, entry, 0);
    }
    void leave_for(Context& next) { swapcontext(&state, &next.state); }
};
#endif

// Stacks are made once for every thread that runs blocks: fresh pages are slow to touch.
static thread_local std::vector<std::unique_ptr<char[]>> stacks;

struct Copy {
    void* target;
    const void* source;  // null: zeros
    unsigned bytes;
};

struct Fiber {
    Context context;
    char* stack;
    At at;
    unsigned index, rank;  // of the thread in its block, of the block in its cluster
    unsigned exchanges;    // so far, with the other lanes of its warp;
    unsigned exchange[2][6];  // what it gave in the last two of them
    void* fake_stack;
    unsigned arrivals, waits;  // at the barrier of its cluster
    const void* bytes;         // barrier that it waits for,
    unsigned phase;            // and which phase of it
    std::vector<std::vector<Copy>> groups;  // of its own copies that are under way, the last open
};

using Kernel = void (*)(long, long, long, long, long, long, long, long, long, long, long, long,
                        long, long, long, long, long, long, long, long, long, long, long, long,
                        long, long, long, long, long, long, long, long);
constexpr int kMaxArguments = 32;

// A barrier of bytes (mbarrier): a phase ends when one thread has arrived and all bytes have.
struct ByteBarrier {
    unsigned phase;
    int missing_arrivals;
    long missing_bytes;
    std::vector<Copy> copies;
};

enum class Life { kBefore, kRunning, kEnded };

// The blocks that run together: a cluster, mostly of one.
struct Block {
    std::vector<Fiber> fibers;
    int threads;                                  // of a block
    std::vector<std::unique_ptr<char[]>> shared;  // of each block
    size_t shared_bytes;
    std::vector<Life> lives;
    unsigned cluster_phase;
    std::map<const void*, ByteBarrier> byte_barriers;
    dsv_dim3 first;  // block of the cluster
    Context scheduler;
    int current;
    Kernel kernel;
    const long* arguments;
    const void* scheduler_stack;
    size_t scheduler_stack_bytes;
    void* scheduler_fake_stack;
};

static thread_local Block* block;

static inline void fail(const char* what) {
    fprintf(stderr, "shim: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    abort();
}

static inline void yield_at(At at) {
    Fiber& fiber = block->fibers[block->current];
    fiber.at = at;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(at == At::kDone ? nullptr : &fiber.fake_stack,
                                   block->scheduler_stack, block->scheduler_stack_bytes);
#endif
    fiber.context.leave_for(block->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &block->scheduler_stack,
                                    &block->scheduler_stack_bytes);
#endif
}

static void enter() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &block->scheduler_stack,
                                    &block->scheduler_stack_bytes);
#endif
    const long* a = block->arguments;
    block->kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
                  a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24],
                  a[25], a[26], a[27], a[28], a[29], a[30], a[31]);
    yield_at(At::kDone);
}

static inline void resume(int thread) {
    Fiber& fiber = block->fibers[thread];
    block->current = thread;
    threadIdx.x = fiber.index;
    blockIdx.y = block->first.y + fiber.rank;
    fiber.at = At::kRunning;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&block->scheduler_fake_stack, fiber.stack, kStackBytes);
#endif
    block->scheduler.leave_for(fiber.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(block->scheduler_fake_stack, nullptr, nullptr);
#endif
}

// Whether every thread of [first, last) that has not ended waits at this barrier.
static inline bool all_at(int first, int last, At at) {
    bool any = false;
    for (int t = first; t < last; ++t) {
        At now = block->fibers[t].at;
        if (now != at && now != At::kDone) return false;
        any = any || now == at;
    }
    return any;
}

// Whose turn it is when: 0 as they are numbered, 1 backwards, any other number a seed.
struct Turns {
    int order;
    uint64_t random;
    explicit Turns(int order) : order(order), random(order) {}
    std::vector<int> of(int first, int last) {
        int count = last - first;
        std::vector<int> turns(count);
        for (int i = 0; i < count; ++i) turns[i] = order == 1 ? last - 1 - i : first + i;
        for (int i = count - 1; i > 0 && order > 1; --i) {
            random = random * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
            std::swap(turns[i], turns[(random >> 33) % uint64_t(i + 1)]);
        }
        return turns;
    }
};

static inline ByteBarrier& started(const void* barrier) {
    auto found = block->byte_barriers.find(barrier);
    if (found == block->byte_barriers.end()) fail("a barrier of bytes that nobody started");
    return found->second;
}

// Whether a phase is over, now that somebody asks: what is under way arrives.
static inline bool bytes_arrived(const void* barrier, unsigned phase) {
    ByteBarrier& at = started(barrier);
    for (const Copy& copy : at.copies) {
        memcpy(copy.target, copy.source, copy.bytes);
        at.missing_bytes -= copy.bytes;
    }
    at.copies.clear();
    if (at.missing_arrivals == 0 && at.missing_bytes == 0) ++at.phase, at.missing_arrivals = 1;
    return (at.phase ^ phase) & 1;
}

// Whether a thread that waits for its cluster, or for bytes, may go on.
static inline bool may_go_on(const Fiber& fiber) {
    if (fiber.at == At::kClusterBarrier) return block->cluster_phase == fiber.arrivals;
    return fiber.at == At::kBytes && bytes_arrived(fiber.bytes, fiber.phase);
}

static inline bool waiting(int first, int last) {
    for (int t = first; t < last; ++t) {
        At at = block->fibers[t].at;
        if (at == At::kClusterBarrier || at == At::kBytes) return true;
    }
    return false;
}

// Runs one block until none of its threads can go on by itself; whether any could.
static inline bool advance(int index, Turns& turns) {
    int begin = index * block->threads, end = begin + block->threads;
    bool moved = block->lives[index] == Life::kBefore, any = true;
    auto run = [&](int first, int last) {
        for (int t : turns.of(first, last)) {
            if (block->fibers[t].at != At::kDone) resume(t);
        }
        any = moved = true;
    };
    if (block->lives[index] == Life::kBefore) {
        block->lives[index] = Life::kRunning;
        run(begin, end);
    }
    while (any) {
        any = false;
        for (int t : waiting(begin, end) ? turns.of(begin, end) : std::vector<int>()) {
            if (may_go_on(block->fibers[t])) resume(t), any = moved = true;
        }
        for (int first = begin; first < end; first += kWarp) {
            int last = first + kWarp < end ? first + kWarp : end;
            while (all_at(first, last, At::kWarpBarrier)) run(first, last);
        }
        if (!any && all_at(begin, end, At::kBlockBarrier)) run(begin, end);
    }
    bool ended = true;
    for (int t = begin; t < end; ++t) ended = ended && block->fibers[t].at == At::kDone;
    if (ended) block->lives[index] = Life::kEnded;
    return moved;
}

static inline void run_together(int blocks, Turns& turns) {
    block->cluster_phase = 0;
    block->byte_barriers.clear();
    block->lives.assign(blocks, Life::kBefore);
    for (auto& shared : block->shared) memset(shared.get(), kPoison, block->shared_bytes);
    blockIdx = block->first;
    for (Fiber& fiber : block->fibers) {
        fiber.context.start(fiber.stack, enter);
        fiber.at = At::kRunning;
        fiber.fake_stack = nullptr;
        fiber.exchanges = fiber.arrivals = fiber.waits = 0;
        fiber.groups.assign(1, {});
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int index : turns.of(0, blocks)) {
            if (block->lives[index] != Life::kEnded) moved = advance(index, turns) || moved;
        }
    }
    for (Fiber& fiber : block->fibers) {
        if (fiber.at == At::kBytes) fail("a wait for bytes that nobody copies");
        if (fiber.at != At::kDone) fail("a barrier that not every thread reaches");
        for (auto& group : fiber.groups) {
            if (!group.empty()) fail("a copy that nobody waits for");
        }
    }
    for (auto& barrier : block->byte_barriers) {
        if (!barrier.second.copies.empty()) fail("a copy that nobody waits for");
    }
}

// ---- Clusters ----------------------------------------------------------------------------------

static inline unsigned current_rank() { return unsigned(block->current / block->threads); }
static inline void* dynamic_shared() { return block->shared[current_rank()].get(); }

// Where this block's shared variable lies in the block of a rank.
static inline void* mapped(const void* shared, unsigned rank) {
    if (rank >= block->shared.size()) fail("a rank outside the cluster");
    if (block->lives[rank] == Life::kBefore) fail("shared memory of a block that has not begun");
    if (block->lives[rank] == Life::kEnded) fail("shared memory of a block that has ended");
    return block->shared[rank].get() + ((const char*)shared - (const char*)dynamic_shared());
}

static inline void cluster_arrive() {
    Fiber& own = block->fibers[block->current];
    if (own.arrivals++ != own.waits) fail("a cluster barrier without a wait before the next");
    for (Fiber& fiber : block->fibers) {
        if (fiber.arrivals != own.arrivals) return;
    }
    ++block->cluster_phase;
}
static inline void cluster_wait() {
    Fiber& own = block->fibers[block->current];
    if (own.waits++ == own.arrivals) fail("a wait for the cluster without an arrival");
    if (block->cluster_phase != own.arrivals) yield_at(At::kClusterBarrier);
}

// ---- Bulk copies -------------------------------------------------------------------------------

static inline void start_bytes(const void* barrier) {
    if ((uintptr_t)barrier % 8) fail("misaligned barrier of bytes");
    if (!block->byte_barriers.insert({barrier, {0, 1, 0, {}}}).second) fail("started twice");
}
static inline void expect_bytes(const void* barrier, unsigned bytes) {
    ByteBarrier& at = started(barrier);
    if (--at.missing_arrivals < 0) fail("two arrivals in a phase of bytes");
    at.missing_bytes += bytes;
}
static inline void copy_bytes(void* target, const void* source, unsigned bytes,
                              const void* barrier) {
    if (((uintptr_t)target | (uintptr_t)source | bytes) % 16) fail("misaligned bulk copy");
    memset(target, kPoison, bytes);
    started(barrier).copies.push_back({target, source, bytes});
}
static inline void wait_bytes(const void* barrier, unsigned phase) {
    if (bytes_arrived(barrier, phase)) return;
    Fiber& own = block->fibers[block->current];
    own.bytes = barrier, own.phase = phase;
    yield_at(At::kBytes);
}

// ---- Copies of a thread's own --------------------------------------------------------------------

static inline void copy_async(void* target, const void* source, unsigned bytes) {
    if (((uintptr_t)target | (uintptr_t)source) % bytes) fail("misaligned copy");
    memset(target, kPoison, bytes);
    block->fibers[block->current].groups.back().push_back({target, source, bytes});
}
static inline void close_group() { block->fibers[block->current].groups.emplace_back(); }
static inline void wait_groups(size_t under_way) {
    auto& groups = block->fibers[block->current].groups;
    while (groups.size() > under_way + 1) {  // the last is open
        for (const Copy& copy : groups.front()) {
            if (copy.source) memcpy(copy.target, copy.source, copy.bytes);
            if (!copy.source) memset(copy.target, 0, copy.bytes);
        }
        groups.erase(groups.begin());
    }
}

}  // namespace dsv

static inline void __syncthreads() { dsv::yield_at(dsv::At::kBlockBarrier); }
static inline void __syncwarp(unsigned = 0xffffffffu) { dsv::yield_at(dsv::At::kWarpBarrier); }

// What every lane of a warp gives at once. Two places take turns: before one is written again, all
// have met for the other, so one barrier is enough.
struct Exchange {
    dsv::Fiber* lanes = &dsv::block->fibers[dsv::block->current & ~31];
    int count = min(32, int(dsv::block->fibers.size()) - (dsv::block->current & ~31));
    unsigned number;
    explicit Exchange(std::initializer_list<unsigned> words) {
        dsv::Fiber& own = lanes[dsv::block->current & 31];
        number = own.exchanges++;
        std::copy(words.begin(), words.end(), own.exchange[number & 1]);
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
    return __shfl_sync(mask, value, (dsv::block->current & 31) ^ lane_mask, width);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    int lane = dsv::block->current & 31;
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

// ---- Tensor cores --------------------------------------------------------------------------------

namespace dsv {

struct E4m3Values {
    double of[256];
    E4m3Values() {
        for (int code = 0; code < 256; ++code) {
            int exponent = code >> 3 & 15, mantissa = code & 7;
            double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
            of[code] = (code & 127) == 127 ? NAN : code & 128 ? -size : size;
        }
    }
};
static const E4m3Values e4m3_values;

struct E4m3 {
    static constexpr int kPerWord = 4;
    static double value(unsigned word, int i) { return e4m3_values.of[word >> (8 * i) & 255]; }
};
struct Bf16 {
    static constexpr int kPerWord = 2;
    static double value(unsigned word, int i) {
        return __uint_as_float(i ? word & 0xffff0000u : word << 16);
    }
};

// D += A B of a warp, A of 16 rows, B of 8 columns, both 8 words deep. "Matrix fragments for
// mma.m16n8k16 / m16n8k32" in the PTX ISA: lane 4 g + t holds rows g and g + 8 of A, column g of B,
// of each words t and t + 4, and of D rows g and g + 8, columns 2 t and 2 t + 1.
template <typename Type>
static inline void multiply(float* d, const unsigned* a, const unsigned* b) {
    Exchange all({a[0], a[1], a[2], a[3], b[0], b[1]});
    int lane = block->current & 31;
    for (int i = 0; i < 4; ++i) {
        int row = lane / 4, column = lane % 4 * 2 + i % 2;
        double sum = d[i];
        for (int word = 0; word < 8; ++word) {
            unsigned left = all.given(row * 4 + word % 4)[i / 2 + word / 4 * 2];
            unsigned right = all.given(column * 4 + word % 4)[4 + word / 4];
            for (int k = 0; k < Type::kPerWord; ++k) {
                sum += Type::value(left, k) * Type::value(right, k);
            }
        }
        d[i] = float(sum);
    }
}

// Four matrices of 8 rows of 16 bytes, whose addresses lanes 8 m .. 8 m + 7 give ("ldmatrix"): lane
// 4 g + t gets word t of row g, or transposed elements g of rows 2 t and 2 t + 1.
template <bool kTransposed>
static inline void load_matrices(unsigned* words, const void* row) {
    if ((uintptr_t)row % 16) fail("misaligned matrix row");
    Exchange all({unsigned((uintptr_t)row), unsigned((uintptr_t)row >> 32)});
    int lane = block->current & 31, g = lane / 4, t = lane % 4;
    auto row_of = [&](int matrix, int i) {
        const unsigned* address = all.given(matrix * 8 + i);
        return reinterpret_cast<const char*>(uintptr_t(address[1]) << 32 | address[0]);
    };
    for (int m = 0; m < 4; ++m) {
        unsigned short pair[2];
        for (int i = 0; i < 2; ++i) {
            const char* from = kTransposed ? row_of(m, 2 * t + i) + 2 * g : row_of(m, g) + 4 * t + 2 * i;
            memcpy(&pair[i], from, 2);
        }
        words[m] = pair[0] | unsigned(pair[1]) << 16;
    }
}

}  // namespace dsv

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

// Runs a kernel: every block of the grid, arguments as 64-bit words; `cluster` blocks along y run
// together.
extern "C" __attribute__((visibility("default"))) void dsv_shim_run(
    void* kernel, int grid_x, int grid_y, int threads, int cluster, int shared_bytes,
    const long* arguments, int count, int order) {
    if (grid_y % cluster) dsv::fail("a grid that is not of whole clusters");
    int groups = grid_x * grid_y / cluster, together = threads * cluster;
    std::vector<int> turn = dsv::Turns(order).of(0, groups);
    long words[dsv::kMaxArguments] = {};
    if (count > dsv::kMaxArguments) dsv::fail("too many arguments");
    memcpy(words, arguments, sizeof(long) * count);
#pragma omp parallel
    {
        dsv::Block mine;
        mine.fibers.resize(together);
        mine.threads = threads;
        mine.shared_bytes = shared_bytes;
        for (int i = 0; i < cluster; ++i) mine.shared.emplace_back(new char[shared_bytes]);
        while (int(dsv::stacks.size()) < together) {
            dsv::stacks.emplace_back(new char[dsv::kStackBytes]);
        }
        for (int t = 0; t < together; ++t) {
            mine.fibers[t].stack = dsv::stacks[t].get();
            mine.fibers[t].index = unsigned(t % threads), mine.fibers[t].rank = unsigned(t / threads);
        }
        mine.kernel = reinterpret_cast<dsv::Kernel>(kernel);
        mine.arguments = words;
        mine.scheduler_fake_stack = nullptr;
        dsv::block = &mine;
        blockDim = {unsigned(threads), 1, 1};
        gridDim = {unsigned(grid_x), unsigned(grid_y), 1};
#pragma omp for schedule(static)
        for (int index = 0; index < groups; ++index) {
            int at = turn[index];
            mine.first = {unsigned(at % grid_x), unsigned(at / grid_x * cluster), 0};
            dsv::Turns turns(order > 1 ? order + at : order);
            dsv::run_together(cluster, turns);
        }
    }
}
