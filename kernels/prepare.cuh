// Block tables that live on the device: blocks for a step's tokens, first node of a graph.
//
// As in BlockTable and prepare_forward of dsv4kv/cache, what changes depends on what is held
// and what is needed alone; it changes all at once or not at all; blocks are given back before
// others are taken, both in the order of the batch, so that the ids equal those of the host.
//
// Compile-time: DSV_RATIO tokens an entry, DSV_BLOCK_ENTRIES entries a block, DSV_LANES tables
// that grow in step, DSV_SLOTS rows and DSV_WIDTH columns of a table, DSV_BLOCKS blocks of a lane,
// DSV_MAX_TOKENS of a request, DSV_REQUESTS of a step at most: a thread each.
#include "common.cuh"

constexpr int kRequests = DSV_REQUESTS;
constexpr int kWarps = kRequests / kWarpSize;
constexpr i64 kBlockTokens = (i64)DSV_RATIO * DSV_BLOCK_ENTRIES;
constexpr int kNoBlock = -1, kNoSlot = -1;
constexpr int kNamedWords = (DSV_SLOTS + 31) / 32;
constexpr i64 kTableCells = (i64)DSV_SLOTS * DSV_WIDTH;

// Why a step was refused.
constexpr u32 kOutOfBlocks = 1, kOverflow = 2, kNotOwner = 4;

static_assert(kRequests % kWarpSize == 0 && kRequests <= 1024 &&
                  (kRequests & (kRequests - 1)) == 0,
              "a power of two of threads");
static_assert((i64)kRequests * DSV_WIDTH < 0x7fffffff, "blocks of a batch fit an int");
static_assert(kNamedWords <= 4096, "131,072 slots fit shared memory");

struct Table {
    int* cells;  // [DSV_LANES, DSV_SLOTS, DSV_WIDTH], kNoBlock beyond what is held
    i64* held;   // [DSV_SLOTS], blocks of each lane
    int* free;   // [DSV_LANES, DSV_BLOCKS], stacks of one height
};

// One request's part of a step, and what all requests together ask.
struct Change {
    int lacking, growth, surplus;
    int taken, given;
    i64 free_before, free_after;
    u32 refused;
};

// What a block of threads shares: request t of the batch is thread t's.
struct Batch {
    i64 slots[kRequests];
    int starts[kRequests];  // first column that changes: behind the blocks that stay
    int ends[kRequests];    // changed cells of requests 0 .. t
    int warp_ends[kWarps];
    int total;
    u32 named[kNamedWords];  // slots, as bits
    u32 refused;
};

__device__ __forceinline__ i64 blocks_for(i64 tokens) {
    return (tokens + kBlockTokens - DSV_RATIO) / kBlockTokens;
}

// Sum of `count` over threads 0 .. this one, and over all of them in batch.total; every thread
// takes part.
__device__ __forceinline__ int running_sum(Batch& batch, int count) {
    int warp = threadIdx.x / kWarpSize, sum = scan_lanes(count);
    if (lane_id() == kWarpSize - 1) batch.warp_ends[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += batch.warp_ends[w];
    if (threadIdx.x == kRequests - 1) batch.total = sum;
    __syncthreads();
    return sum;
}

// Lists `count` cells of every thread's request, from batch.starts on, for listed_cell. Nobody
// looks at an earlier list any more once running_sum has returned.
__device__ __forceinline__ void list_cells(Batch& batch, int count) {
    int end = running_sum(batch, count);
    batch.ends[threadIdx.x] = end;
    __syncthreads();
}

// Cell number k of those listed: the first request whose cells end after k has it.
__device__ __forceinline__ i64 listed_cell(const Batch& batch, int k) {
    int request = 0;
#pragma unroll
    for (int step = kRequests / 2; step > 0; step /= 2) {
        if (batch.ends[request + step - 1] <= k) request += step;
    }
    int before = request == 0 ? 0 : batch.ends[request - 1];
    return batch.slots[request] * DSV_WIDTH + batch.starts[request] + k - before;
}

__device__ __forceinline__ void refuse(Batch& batch, bool wrong, u32 reason) {
    if (wrong) atomicOr(&batch.refused, reason);
}

// Blocks that this thread's request needs beyond those held (negative: gives back). A slot of -1
// is no request; a request that cannot be refuses the whole step.
__device__ __forceinline__ int lacking_blocks(Batch& batch, const Table& table, i64 slot,
                                              i64 tokens) {
    if (slot == kNoSlot) return 0;
    bool exists = slot >= 0 && slot < DSV_SLOTS;
    u32 bit = exists ? 1u << (slot % 32) : 0u;
    bool twice = exists && (atomicOr(&batch.named[slot / 32], bit) & bit);
    bool fits = tokens >= 0 && tokens <= DSV_MAX_TOKENS;
    refuse(batch, !exists || twice, kNotOwner);
    refuse(batch, !fits, kOverflow);
    return exists && fits ? (int)(blocks_for(tokens) - table.held[slot]) : 0;
}

// Works out the step and lists the cells to give back; changes nothing.
__device__ __forceinline__ Change weigh(Batch& batch, const Table& table, const i64* num_free,
                                        const i64* slots, const i64* tokens, int count) {
    int thread = threadIdx.x;
    for (int i = thread; i < kNamedWords; i += kRequests) batch.named[i] = 0;
    if (thread == 0) batch.refused = 0;
    __syncthreads();
    i64 slot = thread < count ? slots[thread] : kNoSlot;
    i64 after = thread < count && tokens ? tokens[thread] : 0;
    batch.slots[thread] = slot;
    Change change;
    change.lacking = lacking_blocks(batch, table, slot, after);
    change.growth = max(change.lacking, 0), change.surplus = max(-change.lacking, 0);
    batch.starts[thread] = change.lacking ? (int)table.held[slot] - change.surplus : 0;
    running_sum(batch, change.growth);
    change.taken = batch.total;
    list_cells(batch, change.surplus);
    change.given = batch.total;
    change.free_before = *num_free;
    change.free_after = change.free_before + change.given - change.taken;
    bool short_of = batch.refused == 0 && change.free_after < 0;
    change.refused = short_of ? kOutOfBlocks : batch.refused;
    return change;
}

// Gives back the listed cells and takes blocks for them, in every lane.
__device__ __forceinline__ void give_back(const Batch& batch, const Table& table, i64 num_free,
                                          int given) {
    for (int k = threadIdx.x; k < given; k += kRequests) {
        i64 cell = listed_cell(batch, k);
        for (i64 lane = 0; lane < DSV_LANES; ++lane) {
            table.free[lane * DSV_BLOCKS + num_free + k] = table.cells[lane * kTableCells + cell];
            table.cells[lane * kTableCells + cell] = kNoBlock;
        }
    }
}
__device__ __forceinline__ void take(const Batch& batch, const Table& table, i64 num_free,
                                     int taken) {
    for (int k = threadIdx.x; k < taken; k += kRequests) {
        i64 cell = listed_cell(batch, k);
        for (i64 lane = 0; lane < DSV_LANES; ++lane) {
            table.cells[lane * kTableCells + cell] = table.free[lane * DSV_BLOCKS + num_free + k];
        }
    }
}

// What prepare_blocks would say to a step: status[1] takes it, with what `others` says (null:
// nothing). Where tables change together, all are judged before any changes.
DSV_KERNEL void __launch_bounds__(kRequests, 1)
    judge_blocks(int* cells, i64* held, int* free, i64* num_free, u32* status, const u32* others,
                 const i64* slots, const i64* tokens, int count) {
    begin_kernel();
    __shared__ Batch batch;
    Change change = weigh(batch, {cells, held, free}, num_free, slots, tokens, count);
    if (threadIdx.x == 0) status[1] = change.refused | (others ? *others : 0u);
}

// Makes every slot hold exactly the blocks of its tokens. One block of threads, one thread for
// each request. slots: int64[count], distinct, -1 for none; tokens: int64[count] after the step,
// or null to give everything back.
// A batch that cannot be, does not fit, or that `others` refuses (null: nobody) changes nothing
// but status: status[1] is why this step was refused, or 0; status[0] collects all reasons until
// the host clears it.
DSV_KERNEL void __launch_bounds__(kRequests, 1)
    prepare_blocks(int* cells, i64* held, int* free, i64* num_free, u32* status,
                   const u32* others, const i64* slots, const i64* tokens, int count) {
    begin_kernel();
    __shared__ Batch batch;
    Table table = {cells, held, free};
    u32 refused = others ? *others : 0u;
    Change change = weigh(batch, table, num_free, slots, tokens, count);
    refused |= change.refused;
    if (threadIdx.x == 0) status[0] |= refused, status[1] = refused;
    if (refused) return;
    give_back(batch, table, change.free_before, change.given);
    list_cells(batch, change.growth);
    take(batch, table, change.free_after, change.taken);
    if (change.lacking) held[slots[threadIdx.x]] += change.lacking;
    if (threadIdx.x == 0) *num_free = change.free_after;
}
