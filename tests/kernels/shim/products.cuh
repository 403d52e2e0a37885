// One product of small matrices, and one load of them, by a warp: for tests of what stands for tensor
// cores on a CPU.
#include "../../../kernels/tensor.cuh"  // found from here by NVRTC too

// sums: float32[16, 8], added to; a: 16 rows of 32 bytes, b: 8 columns of 32 bytes, of e4m3 or bf16.
DSV_KERNEL void multiply(const u32* a, const u32* b, float* sums, int bf16) {
    begin_kernel();
    int g = lane_id() / 4, t = lane_id() % 4;
    u32 left[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    u32 right[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
    float* rows[2] = {sums + g * 8 + 2 * t, sums + (g + 8) * 8 + 2 * t};
    float d[4] = {rows[0][0], rows[0][1], rows[1][0], rows[1][1]};
    if (bf16) mma_bf16(d, left, right);
    for (int half = 0; half < 2 && !bf16; ++half) {  // a word of e4m3 is two of what is multiplied
        const u32 *a = left + 2 * half, *b = right + half;
        u32 rows[4] = {unpack_e4m3(a[0], 0), unpack_e4m3(a[1], 0), unpack_e4m3(a[0], 1), unpack_e4m3(a[1], 1)};
        u32 columns[2] = {unpack_e4m3(b[0], 0), unpack_e4m3(b[0], 1)};
        mma_unpacked(d, rows, columns);
    }
    rows[0][0] = d[0], rows[0][1] = d[1], rows[1][0] = d[2], rows[1][1] = d[3];
}

// rows: bf16[32, 8], four matrices; words: u32[4, 32], of each matrix what every lane gets.
DSV_KERNEL void load(const u8* rows, u32* words, int transposed) {
    begin_kernel();
    uint4* shared = (uint4*)dynamic_shared();
    shared[lane_id()] = dsv_load<uint4>(rows + lane_id() * 16);
    __syncwarp();
    u32 own[4];
    if (transposed) load_matrices<true>(own, shared + lane_id());
    if (!transposed) load_matrices<false>(own, shared + lane_id());
    for (int m = 0; m < 4; ++m) words[m * kWarpSize + lane_id()] = own[m];
}

// Copies 16 bytes a lane, in two groups; the second lane's of the second group is nothing. mistake 1:
// reads without waiting; 2: never waits for the second group; 3: a source between multiples of 16.
DSV_KERNEL void copy(const u8* from, u8* to, int mistake) {
    begin_kernel();
    uint4* shared = (uint4*)dynamic_shared();
    int lane = lane_id();
    copy_async<16>(shared + lane, from + lane * 16 + (mistake == 3) * 8, true);
    close_copies();
    copy_async<16>(shared + 32 + lane, from + 512 + lane * 16, lane != 1);
    close_copies();
    if (mistake != 1) wait_copies<1>();
    dsv_store(to + lane * 16, shared[lane]);
    if (mistake != 2) wait_copies<0>();
    dsv_store(to + 512 + lane * 16, shared[32 + lane]);
}
