// Insert indexer keys, rotated by Hadamard(128) / sqrt(128). Without a rotation: entry_insert.
//
// Compile-time: the format, see format.cuh.
#include "hadamard.cuh"

// keys: bf16[count, 128]; entries: int64[count], physical, distinct. An entry outside
// 0..num_entries-1 is skipped.
DSV_KERNEL void __launch_bounds__(256, 4)
    indexer_insert(u8* pages, const u8* keys, const i64* entries, int count, i64 num_entries) {
    begin_kernel();
    for (i64 i = warp_id(); i < count; i += warp_count()) {
        i64 entry = entries[i];
        if (entry < 0 || entry >= num_entries) continue;
        const u8* key = keys + i * (DSV_DIMS * 2);
        uint4 chunk = make_uint4(0, 0, 0, 0);
        if (lane_id() < kChunks) chunk = dsv_load<uint4>(key + lane_id() * 16);
        chunk = rotate(chunk);
        encode_entry(data_row(pages, entry), scale_row(pages, entry), &chunk);
    }
}
