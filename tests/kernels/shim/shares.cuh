// Which tiles of attention blocks take: for a test that counts.
#include "../../../kernels/attention.cuh"

// taken: int32[tokens, groups, most], added to for every tile; of_block: int32[blocks], tiles of each.
DSV_KERNEL void take_tiles(const i64* slots, const i64* seen, const i64* lengths, int* taken, int* of_block,
                           int tokens, int groups, int most, int size, int width, int choices) {
    begin_kernel();
    Window window = {nullptr, seen, tokens, size};
    Others others = {nullptr, nullptr, lengths, nullptr, tokens, width, choices, 0};
    Run run = run_of(window, others, slots, tokens, groups);
    while (run.left > 0) {
        Piece piece = next_piece(run, window, others, slots);
        int* first = taken + ((i64)piece.token * groups + piece.group) * most;
        for (int tile = piece.first; tile < piece.last && lane_id() == 0; ++tile) {
            atomicAdd(first + tile, 1);
            of_block[blockIdx.y * gridDim.x + blockIdx.x] += 1;
        }
    }
}
