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

// What is done with an entry, by a warp.
struct Staged {
    // Where a physical entry is; the first one's place where it is negative.
    // As data_row_at and scale_row_at, by 32-bit rows: theirs spill on sm_120.
    static __device__ __forceinline__ Stored place(const u8* pages, int entry) {
        u32 there = max(entry, 0), row = there % DSV_ENTRIES;
        const u8* page = pages + (u64)(there / DSV_ENTRIES) * DSV_PAGE_BYTES;
        return {page + row * DSV_DATA_ROW, page + (DSV_SCALE_START + row * DSV_SCALE_STRIDE)};
    }

    // Starts copies to shared memory, zeros where there is no entry.
    static __device__ __forceinline__ void stage(const Stored& entry, bool there, u32 staged) {
#pragma unroll
        for (int first = 0; first < kRowPieces; first += kWarpSize) {
            int at = (first + lane_id()) * 16;
            copy_async<16>(staged + at, entry.data + at, there, at < DSV_DATA_ROW);
        }
        if constexpr (kOwnScales) {
            int at = lane_id() * kScalePiece;
            copy_async<kScalePiece>(staged + DSV_DATA_ROW + at, entry.scales + at, there,
                                    at < DSV_SCALE_BYTES);
        }
    }

    // What a lane holds of it; the next one may be copied to its place then.
    using Loaded = StoredEntry;
    static __device__ __forceinline__ Loaded load(const u8* staged) {
        const u8* scales = staged + (kOwnScales ? DSV_DATA_ROW : DSV_SCALE_START);
        return load_entry<Held>(staged, scales, lane_id());
    }

    // store(chunk, 8 bf16) for each chunk.
    template <typename Store>
    static __device__ __forceinline__ void decode(const Loaded& entry, Store store) {
#pragma unroll
        for (int i = 0; i < kChunksPerLane; ++i) {
            int chunk = lane_id() + i * kWarpSize;
            if (chunk < kChunks) store(chunk, decode_chunk(entry, i, lane_id()));
        }
    }
};
#endif  // DSV_STAGED_CUH
