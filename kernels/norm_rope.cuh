// Entries from one projected value each: no pooling, no state. DeepSeek-V4.1's layers of ratio 1 and
// its indexer keys.
//
// Compile-time: finish.cuh's parameters.
#include "finish.cuh"

// A value as it is projected, bf16[DSV_DIMS].
struct Projected {
    const u8* value;
};
__device__ __forceinline__ Four load_pooled(const Projected& projected, int channel) {
    uint2 pairs = dsv_load<uint2>(projected.value + channel * 2);
    return {{bf16_low(pairs.x), bf16_high(pairs.x), bf16_low(pairs.y), bf16_high(pairs.y)}};
}

// A warp an entry. values: bf16[count, DSV_DIMS]; positions, entries: int64[count], of the token that ends a group and
// the physical entry, distinct. An entry outside 0 .. num_entries - 1, and a position that ends no
// group (of the table), is skipped.
DSV_KERNEL void __launch_bounds__(128)
    norm_rope_insert(u8* pages, const u8* values, const i64* positions, const i64* entries,
                     const float* norm_weight, const Rope* rope, u32 norm_eps, int count,
                     i64 num_entries, i64 num_groups) {
    begin_kernel();
    i64 i = warp_id();
    if (i >= count) return;
    i64 position = positions[i], entry = entries[i];
    bool ends = position >= 0 && position % DSV_RATIO == DSV_RATIO - 1 &&
                position / DSV_RATIO < num_groups;
    if (!ends || entry < 0 || entry >= num_entries) return;
    Finish how = {norm_weight, rope, __uint_as_float(norm_eps)};
    Job job = {0, position - (DSV_RATIO - 1), entry};
    finish_entry(Projected{values + i * (DSV_DIMS * 2)}, job, how, pages);
}
