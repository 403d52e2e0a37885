// Entries of one format on their way to the tensor cores: copied to shared memory as they are
// stored, then decoded there. A part of attend.cuh.
//
// Compile-time: the format, see format.cuh.
#ifndef DSV_STAGED_CUH
#define DSV_STAGED_CUH
#include "async.cuh"
#include "format.cuh"

constexpr int kRowPieces = DSV_DATA_ROW / 16;
constexpr bool kOwnScales = kHasScales && DSV_SCALE_STRIDE != DSV_DATA_ROW;  // in rows of their own
constexpr int kScalePiece = DSV_SCALE_BYTES % 16 ? 8 : 16;
constexpr int kStagedBytes = (DSV_DATA_ROW + (kOwnScales ? DSV_SCALE_BYTES : 0) + 15) / 16 * 16;

static_assert(DSV_DATA_ROW % 16 == 0 && DSV_PAGE_BYTES % 16 == 0, "rows are copied 16 bytes at once");
static_assert(!kOwnScales || (DSV_SCALE_BYTES % 8 == 0 && DSV_SCALE_START % kScalePiece == 0),
              "scales are copied 8 or 16 bytes at once");

// Starts copies of a physical entry, zeros where it is negative; by a warp.
__device__ __forceinline__ void stage_entry(const u8* pages, int entry, u8* staged) {
    const u8* data = data_row(pages, max(entry, 0));
#pragma unroll
    for (int first = 0; first < kRowPieces; first += kWarpSize) {
        int piece = first + lane_id();
        if (piece < kRowPieces) copy_async<16>(staged + piece * 16, data + piece * 16, entry >= 0);
    }
    if constexpr (kOwnScales) {
        int at = lane_id() * kScalePiece;
        const u8* scales = scale_row(pages, max(entry, 0));
        if (at < DSV_SCALE_BYTES) {
            copy_async<kScalePiece>(staged + DSV_DATA_ROW + at, scales + at, entry >= 0);
        }
    }
}

// Decodes a staged entry: store(chunk, 8 bf16) for each chunk; by a warp.
template <typename Store>
__device__ __forceinline__ void decode_staged(const u8* staged, Store store) {
    const u8* scales = staged + (kOwnScales ? DSV_DATA_ROW : DSV_SCALE_START);
    StoredEntry entry = load_entry<Held>(staged, scales, lane_id());
#pragma unroll
    for (int i = 0; i < kChunksPerLane; ++i) {
        int chunk = lane_id() + i * kWarpSize;
        if (chunk < kChunks) store(chunk, decode_chunk(entry, i, lane_id()));
    }
}
#endif  // DSV_STAGED_CUH
