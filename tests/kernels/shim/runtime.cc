// Runs the blocks of a kernel, with a fiber for every thread: see shim.h.
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "shim.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

__thread dsv_dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace dsv {

__thread Lane* lanes;
__thread int together, current;

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 << 10;
constexpr int kPoison = 0xff;  // as floats: NaN

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
    const void* source;  // null: zeros, or what was sent
    unsigned bytes;
    uint4 sent;
};

// A product of a warpgroup that is under way.
struct GroupProduct {
    float* d;
    unsigned long long a, b;
    int columns;
    bool by_columns;
};

struct Fiber {
    Context context;
    char* stack;
    At at;
    unsigned index, rank;  // of the thread in its block, of the block in its cluster
    void* fake_stack;
    unsigned arrivals, waits;  // at the barrier of its cluster
    const void* bytes;         // barrier that it waits for,
    unsigned phase;            // and which phase of it
    int barrier;               // that it waits at, by name,
    unsigned turn;             // and which turn of it
    bool multiplying;          // between begin_products and close_products
    std::vector<std::vector<GroupProduct>> products;  // that nobody has waited for, by groups
    std::vector<std::vector<Copy>> groups;  // of its own copies that are under way, the last open
};

using Kernel = void (*)(long, long, long, long, long, long, long, long, long, long, long, long,
                        long, long, long, long, long, long, long, long, long, long, long, long,
                        long, long, long, long, long, long, long, long);
constexpr int kMaxArguments = 32;

// A barrier of bytes (mbarrier): a phase ends when all threads have arrived and all bytes have.
struct ByteBarrier {
    unsigned phase;
    int threads, missing_arrivals;
    long missing_bytes;
    std::vector<Copy> copies;
};

// A barrier that threads come to by its name.
struct NamedBarrier {
    int threads, arrived;
    unsigned turn;
};
constexpr int kNamedBarriers = 16;

enum class Life { kBefore, kRunning, kEnded };

// What a warp's tensor core gave last, at which of its lanes' exchanges.
struct Product {
    unsigned number;
    float d[16][8];
};

// Shared memory of a block, aligned as matrices have to be.
struct Free {
    void operator()(char* bytes) const { free(bytes); }
};
using Shared = std::unique_ptr<char[], Free>;

// The blocks that run together: a cluster, mostly of one.
struct Block {
    std::vector<Fiber> fibers;
    std::vector<Lane> lanes;
    std::vector<Product> products;
    int threads;                                  // of a block
    std::vector<Shared> shared;  // of each block
    std::vector<NamedBarrier> named;  // of each block
    size_t shared_bytes;
    bool late;  // products of warpgroups are made when somebody waits for them
    std::vector<Life> lives;
    unsigned cluster_phase;
    std::map<const void*, ByteBarrier> byte_barriers;
    dsv_dim3 first;  // block of the cluster
    Context scheduler;
    Kernel kernel;
    const long* arguments;
    const void* scheduler_stack;
    size_t scheduler_stack_bytes;
    void* scheduler_fake_stack;
};

static thread_local Block* block;

void fail(const char* what) {
    fprintf(stderr, "shim: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    abort();
}

void yield_at(At at) {
    Fiber& fiber = block->fibers[current];
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

static void resume(int thread) {
    Fiber& fiber = block->fibers[thread];
    current = thread;
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
static bool all_at(int first, int last, At at) {
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

static ByteBarrier& started(const void* barrier) {
    auto found = block->byte_barriers.find(barrier);
    if (found == block->byte_barriers.end()) fail("a barrier of bytes that nobody started");
    return found->second;
}

// Whether a phase is over, now that somebody asks: what is under way arrives.
static bool bytes_arrived(const void* barrier, unsigned phase) {
    ByteBarrier& at = started(barrier);
    for (const Copy& copy : at.copies) {
        memcpy(copy.target, copy.source ? copy.source : &copy.sent, copy.bytes);
        at.missing_bytes -= copy.bytes;
    }
    at.copies.clear();
    if (at.missing_arrivals == 0 && at.missing_bytes == 0) {
        ++at.phase, at.missing_arrivals = at.threads;
    }
    return (at.phase ^ phase) & 1;
}

// Whether a thread that waits for its cluster, or for bytes, may go on.
static bool may_go_on(const Fiber& fiber) {
    if (fiber.at == At::kClusterBarrier) return block->cluster_phase == fiber.arrivals;
    if (fiber.at == At::kNamedBarrier) {
        return block->named[fiber.rank * kNamedBarriers + fiber.barrier].turn != fiber.turn;
    }
    return fiber.at == At::kBytes && bytes_arrived(fiber.bytes, fiber.phase);
}

static bool waiting(int first, int last) {
    for (int t = first; t < last; ++t) {
        At at = block->fibers[t].at;
        if (at == At::kClusterBarrier || at == At::kBytes || at == At::kNamedBarrier) return true;
    }
    return false;
}

// Runs one block until none of its threads can go on by itself; whether any could.
static bool advance(int index, Turns& turns) {
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

static void run_together(int blocks, Turns& turns) {
    block->cluster_phase = 0;
    block->lanes.assign(block->fibers.size(), Lane());
    block->products.assign(block->fibers.size() / kWarp, {~0u, {}});
    block->byte_barriers.clear();
    block->named.assign(blocks * kNamedBarriers, {0, 0, 0});
    block->lives.assign(blocks, Life::kBefore);
    for (auto& shared : block->shared) memset(shared.get(), kPoison, block->shared_bytes);
    blockIdx = block->first;
    for (Fiber& fiber : block->fibers) {
        fiber.context.start(fiber.stack, enter);
        fiber.at = At::kRunning;
        fiber.fake_stack = nullptr;
        fiber.arrivals = fiber.waits = 0;
        fiber.groups.assign(1, {});
        fiber.multiplying = false;
        fiber.products.clear();
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
        if (!fiber.products.empty()) fail("products that nobody waits for");
        for (auto& group : fiber.groups) {
            if (!group.empty()) fail("a copy that nobody waits for");
        }
    }
    for (const NamedBarrier& barrier : block->named) {
        if (barrier.arrived) fail("a barrier that not every thread reaches");
    }
    for (auto& barrier : block->byte_barriers) {
        if (!barrier.second.copies.empty()) fail("a copy that nobody waits for");
    }
}

// ---- Clusters ----------------------------------------------------------------------------------

unsigned current_rank() { return unsigned(current / block->threads); }
void* dynamic_shared() { return block->shared[current_rank()].get(); }

// Where this block's shared variable lies in the block of a rank.
void* mapped(const void* shared, unsigned rank) {
    if (rank >= block->shared.size()) fail("a rank outside the cluster");
    if (block->lives[rank] == Life::kBefore) fail("shared memory of a block that has not begun");
    if (block->lives[rank] == Life::kEnded) fail("shared memory of a block that has ended");
    return block->shared[rank].get() + ((const char*)shared - (const char*)dynamic_shared());
}

void cluster_arrive() {
    Fiber& own = block->fibers[current];
    if (own.arrivals++ != own.waits) fail("a cluster barrier without a wait before the next");
    for (Fiber& fiber : block->fibers) {
        if (fiber.arrivals != own.arrivals) return;
    }
    ++block->cluster_phase;
}
void cluster_wait() {
    Fiber& own = block->fibers[current];
    if (own.waits++ == own.arrivals) fail("a wait for the cluster without an arrival");
    if (block->cluster_phase != own.arrivals) yield_at(At::kClusterBarrier);
}

// ---- Bulk copies -------------------------------------------------------------------------------

void start_barrier(const void* barrier, int threads) {
    if ((uintptr_t)barrier % 8) fail("misaligned barrier of bytes");
    ByteBarrier begun = {0, threads, threads, 0, {}};
    if (!block->byte_barriers.insert({barrier, begun}).second) fail("started twice");
}
void expect_bytes(const void* barrier, unsigned bytes) {
    ByteBarrier& at = started(barrier);
    if (--at.missing_arrivals < 0) fail("an arrival too many in a phase of bytes");
    at.missing_bytes += bytes;
}
void copy_bytes(void* target, const void* source, unsigned bytes,
                              const void* barrier) {
    if (((uintptr_t)target | (uintptr_t)source | bytes) % 16) fail("misaligned bulk copy");
    memset(target, kPoison, bytes);
    started(barrier).copies.push_back({target, source, bytes, {}});
}
void send(void* target, const void* value, unsigned bytes, const void* barrier) {
    if ((uintptr_t)target % bytes) fail("misaligned vector store");
    memset(target, kPoison, bytes);
    Copy copy = {target, nullptr, bytes, {}};
    memcpy(&copy.sent, value, bytes);
    started(barrier).copies.push_back(copy);
}
void wait_bytes(const void* barrier, unsigned phase) {
    if (bytes_arrived(barrier, phase)) return;
    Fiber& own = block->fibers[current];
    own.bytes = barrier, own.phase = phase;
    yield_at(At::kBytes);
}

// ---- Copies of a thread's own --------------------------------------------------------------------

void copy_async(void* target, const void* source, unsigned bytes) {
    if (((uintptr_t)target | (uintptr_t)source) % bytes) fail("misaligned copy");
    memset(target, kPoison, bytes);
    block->fibers[current].groups.back().push_back({target, source, bytes, {}});
}
void close_group() { block->fibers[current].groups.emplace_back(); }
void wait_groups(unsigned under_way) {
    auto& groups = block->fibers[current].groups;
    while (groups.size() > under_way + 1) {  // the last is open
        for (const Copy& copy : groups.front()) {
            if (copy.source) memcpy(copy.target, copy.source, copy.bytes);
            if (!copy.source) memset(copy.target, 0, copy.bytes);
        }
        groups.erase(groups.begin());
    }
}

// ---- Barriers by name ----------------------------------------------------------------------------

// A thread's arrival; which turn of the barrier it is.
static unsigned arrive_at(int barrier, int threads) {
    if (barrier < 1 || barrier >= kNamedBarriers || threads % kWarp) fail("no such barrier");
    NamedBarrier& at = block->named[current_rank() * kNamedBarriers + barrier];
    if (at.arrived && at.threads != threads) fail("a barrier of two numbers of threads");
    unsigned turn = at.turn;
    at.threads = threads;
    if (++at.arrived == threads) at.arrived = 0, ++at.turn;
    return turn;
}
void named_arrive(int barrier, int threads) { arrive_at(barrier, threads); }
void named_sync(int barrier, int threads) {
    Fiber& own = block->fibers[current];
    own.barrier = barrier, own.turn = arrive_at(barrier, threads);
    if (block->named[current_rank() * kNamedBarriers + barrier].turn == own.turn) {
        yield_at(At::kNamedBarrier);
    }
}

// ---- Tensor cores --------------------------------------------------------------------------------

struct Bf16 {
    static constexpr int kPerWord = 2;
    static double value(unsigned word, int i) {
        return __uint_as_float(i ? word & 0xffff0000u : word << 16);
    }
};

// D += A B of a warp, A of 16 rows, B of 8 columns, both 8 words deep. "Matrix fragments for
// mma.m16n8k16" in the PTX ISA: lane 4 g + t holds rows g and g + 8 of A, column g of B,
// of each words t and t + 4, and of D rows g and g + 8, columns 2 t and 2 t + 1.
template <typename Type>
static void multiply_fragments(const Lane* lanes, unsigned place, float (*d)[8]) {
    constexpr int kDeep = 8 * Type::kPerWord;
    double left[16][kDeep], right[kDeep][8];
    for (int lane = 0; lane < kWarp; ++lane) {
        const unsigned* words = lanes[lane].exchange[place];
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i) d[g + i / 2 * 8][2 * t + i % 2] = __uint_as_float(words[6 + i]);
        for (int k = 0; k < Type::kPerWord; ++k) {
            int first = t * Type::kPerWord + k, second = first + kDeep / 2;
            left[g][first] = Type::value(words[0], k), left[g + 8][first] = Type::value(words[1], k);
            left[g][second] = Type::value(words[2], k), left[g + 8][second] = Type::value(words[3], k);
            right[first][g] = Type::value(words[4], k), right[second][g] = Type::value(words[5], k);
        }
    }
    for (int row = 0; row < 16; ++row) {
        double sums[8];
        for (int column = 0; column < 8; ++column) sums[column] = d[row][column];
        for (int k = 0; k < kDeep; ++k) {
            for (int column = 0; column < 8; ++column) sums[column] += left[row][k] * right[k][column];
        }
        for (int column = 0; column < 8; ++column) d[row][column] = float(sums[column]);
    }
}
template <typename Type>
void multiply(float* d, const unsigned* a, const unsigned* b) {
    unsigned own[4];
    memcpy(own, d, sizeof(own));
    Exchange all({a[0], a[1], a[2], a[3], b[0], b[1], own[0], own[1], own[2], own[3]});
    Product& product = block->products[current / kWarp];
    if (product.number != all.number) {  // the first lane that goes on does it for all
        multiply_fragments<Type>(all.lanes, all.number & 1, product.d);
        product.number = all.number;
    }
    int g = current % kWarp / 4, t = current % 4;
    for (int i = 0; i < 4; ++i) d[i] = product.d[g + i / 2 * 8][2 * t + i % 2];
}

// Four matrices of 8 rows of 16 bytes, whose addresses lanes 8 m .. 8 m + 7 give ("ldmatrix"): lane
// 4 g + t gets word t of row g, or transposed elements g of rows 2 t and 2 t + 1.
template <bool kTransposed>
void load_matrices(unsigned* words, const void* row) {
    if ((uintptr_t)row % 16) fail("misaligned matrix row");
    Exchange all({unsigned((uintptr_t)row), unsigned((uintptr_t)row >> 32)});
    int lane = current & 31, g = lane / 4, t = lane % 4;
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

// An element of a matrix in panels of 64 bf16, by its descriptor ("Matrix descriptor format" and
// "canonical layouts" in the PTX ISA, 128-byte swizzle): `line` counts lines of 128 bytes, eight of
// which are 1,024 bytes, each eight a stride apart; panels follow one another by the leading offset.
static float element_of(unsigned long long matrix, int line, int column) {
    unsigned start = unsigned(matrix & 0x3fff) << 4, leading = unsigned(matrix >> 16 & 0x3fff) << 4;
    unsigned stride = unsigned(matrix >> 32 & 0x3fff) << 4;
    if (matrix >> 62 != 1) fail("a matrix without 128-byte swizzle");
    if (start >> 7 & 7) fail("a matrix that does not begin with its eight lines");
    size_t at = start + column / 64 * leading + line / 8 * stride + line % 8 * 128 + column % 64 * 2;
    at ^= (at >> 7 & 7) << 4;
    if (at + 2 > block->shared_bytes) fail("a matrix outside shared memory");
    unsigned short bits;
    memcpy(&bits, (const char*)dynamic_shared() + at, 2);
    return __uint_as_float(unsigned(bits) << 16);
}

// What this lane holds of D += A B: see warpgroup.cuh.
static void multiply_matrices(const GroupProduct& product) {
    int thread = current % block->threads, g = thread % kWarp / 4, t = thread % 4;
    for (int h = 0; h < 2; ++h) {
        double left[16];
        int row = thread / kWarp % 4 * 16 + h * 8 + g;
        for (int k = 0; k < 16; ++k) left[k] = element_of(product.a, row, k);
        for (int n = 0; n < product.columns / 8; ++n) {
            for (int i = 0; i < 2; ++i) {
                float* sum = product.d + n * 4 + h * 2 + i;
                int column = n * 8 + t * 2 + i;
                double exact = *sum;
                for (int k = 0; k < 16; ++k) {
                    exact += left[k] * (product.by_columns ? element_of(product.b, k, column)
                                                           : element_of(product.b, column, k));
                }
                *sum = float(exact);
            }
        }
    }
}

void begin_products() {
    Fiber& own = block->fibers[current];
    if (own.multiplying) fail("products begun twice");
    own.multiplying = true;
    own.products.emplace_back();
}
void multiply_group(float* d, unsigned long long a, unsigned long long b, int columns,
                    bool by_columns) {
    Fiber& own = block->fibers[current];
    if (!own.multiplying) fail("a product that is not begun");
    GroupProduct product = {d, a, b, columns, by_columns};
    if (block->late) own.products.back().push_back(product);
    if (!block->late) multiply_matrices(product);
}
void close_products() { block->fibers[current].multiplying = false; }
void wait_products(unsigned under_way) {
    auto& groups = block->fibers[current].products;
    while (groups.size() > under_way) {
        for (const GroupProduct& product : groups.front()) multiply_matrices(product);
        groups.erase(groups.begin());
    }
}

template void multiply<Bf16>(float*, const unsigned*, const unsigned*);
template void load_matrices<false>(unsigned*, const void*);
template void load_matrices<true>(unsigned*, const void*);

}  // namespace dsv

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
        mine.lanes.resize(together);
        mine.threads = threads;
        mine.shared_bytes = shared_bytes;
        mine.late = order != 0;
        for (int i = 0; i < cluster; ++i) {
            mine.shared.emplace_back(
                static_cast<char*>(aligned_alloc(1024, (shared_bytes + 1024) / 1024 * 1024)));
        }
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
        dsv::lanes = mine.lanes.data(), dsv::together = together;
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
