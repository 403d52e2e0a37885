// Products of one warpgroup, and barriers that threads come to by name: for tests of what stands for
// them on a CPU.
#include "../../../kernels/warpgroup.cuh"

// rows: bf16[64, 64]; columns: bf16[32, 64], or by columns bf16[64, 256]. sums: float32[64, 32 or 256],
// added to. mistake 1: a product that nobody waits for; 2: a matrix between its lines; 3: one outside
// shared memory; 4: its first rows again before products of them are over.
template <int kColumns, bool kByColumns>
__device__ __forceinline__ void multiply_panels(const u8* rows, const u8* others, float* sums,
                                                int mistake) {
    constexpr int kLines = kByColumns ? 64 : kColumns, kPanels = kByColumns ? kColumns / 64 : 1;
    uint4* shared = (uint4*)dynamic_shared();
    auto copy = [&](uint4* panels, const u8* from, int lines, int count) {
        for (int i = threadIdx.x; i < lines * count * 8; i += kGroupThreads) {
            int line = i / (count * 8), panel = i / 8 % count, chunk = i % 8;
            panels[(panel * lines + line) * 8 + panel_place(line, chunk)] = dsv_load<uint4>(from + i * 16);
        }
    };
    copy(shared, rows, 64, 1);
    copy(shared + 512, others, kLines, kPanels);
    show_to_products();
    __syncthreads();
    int lane = lane_id(), first = threadIdx.x / kWarpSize * 16 + lane / 4;
    float d[kColumns / 8][4];
    for (int n = 0; n < kColumns / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
            d[n][i] = sums[(first + i / 2 * 8) * kColumns + n * 8 + lane % 4 * 2 + i % 2];
        }
    }
    u64 a = matrix_at(shared + (mistake == 2) * 8, 0);
    u64 b = matrix_at(shared + 512 + (mistake == 3) * 2560, kLines * kPanelRow);
    begin_products();
    for (int i = 0; i < 4; ++i) {
        multiply_group<kColumns, kByColumns>(d, further(a, i * 32),
                                             further(b, kByColumns ? i * 16 * kPanelRow : i * 32));
    }
    if (mistake == 4) shared[threadIdx.x] = make_uint4(0, 0, 0, 0);
    close_products();
    if (mistake != 1) wait_products<0>();
    for (int n = 0; n < kColumns / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
            sums[(first + i / 2 * 8) * kColumns + n * 8 + lane % 4 * 2 + i % 2] = d[n][i];
        }
    }
}
DSV_KERNEL void multiply_rows(const u8* rows, const u8* others, float* sums, int mistake) {
    begin_kernel();
    multiply_panels<32, false>(rows, others, sums, mistake);
}
DSV_KERNEL void multiply_columns(const u8* rows, const u8* others, float* sums, int mistake) {
    begin_kernel();
    multiply_panels<256, true>(rows, others, sums, mistake);
}

// One warp fills and others read, by turns, 4 times: of 64 threads, 32 wait for what 32 bring.
// mistake 1: it is filled before it is read; 2: a barrier of two numbers of threads; 3: one that too few
// come to.
DSV_KERNEL void hand_over(int* seen, int mistake) {
    begin_kernel();
    int* shared = (int*)dynamic_shared();
    constexpr int kFull = 1, kRead = 2;
    for (int turn = 0; turn < 4; ++turn) {
        if (threadIdx.x < kWarpSize) {
            if (turn > 0 && mistake != 1) sync_threads(kRead, 64);
            shared[lane_id()] = turn * 100 + lane_id();
            if (mistake != 3 || turn < 3) arrive_threads(kFull, mistake == 2 ? 96 : 64);
        } else {
            sync_threads(kFull, 64);
            seen[turn * kWarpSize + lane_id()] = shared[lane_id()];
            if (turn < 3 && mistake != 1) arrive_threads(kRead, 64);
        }
    }
}
