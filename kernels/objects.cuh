// Objects of tiers: one for each page or slot, the pieces of all layers of a family one after another.
//
// Gathered from the layers' pools and put back by one launch a family, whatever the layers are.
#include "common.cuh"

// pools: i64[2, layers], the address of every layer's pool and its pieces. ids: i64[layers, count], the
// page or slot of every object. objects: count of them, `stride` bytes apart. piece_bytes and stride are
// multiples of 16. A number outside a pool is skipped.
template <bool kTake>
__device__ __forceinline__ void move_objects(u8* objects, const i64* pools, const i64* ids, i64 count,
                                             i64 layers, i64 piece_bytes, i64 stride) {
    for (i64 piece = blockIdx.y; piece < count * layers; piece += gridDim.y) {
        i64 object = piece / layers, layer = piece % layers;
        i64 id = ids[layer * count + object];
        if (id < 0 || id >= pools[layers + layer]) continue;
        u8* pool = (u8*)pools[layer] + id * piece_bytes;
        u8* place = objects + object * stride + layer * piece_bytes;
        for (i64 i = thread_id() * 16; i < piece_bytes; i += thread_count() * 16) {
            if (kTake) {
                dsv_store(place + i, dsv_load<uint4>(pool + i));
            } else {
                dsv_store(pool + i, dsv_load<uint4>(place + i));
            }
        }
    }
}

DSV_KERNEL void __launch_bounds__(256, 4)
    take_objects(u8* objects, const i64* pools, const i64* ids, i64 count, i64 layers,
                 i64 piece_bytes, i64 stride) {
    begin_kernel();
    move_objects<true>(objects, pools, ids, count, layers, piece_bytes, stride);
}

DSV_KERNEL void __launch_bounds__(256, 4)
    put_objects(const u8* objects, const i64* pools, const i64* ids, i64 count, i64 layers,
                i64 piece_bytes, i64 stride) {
    begin_kernel();
    move_objects<false>((u8*)objects, pools, ids, count, layers, piece_bytes, stride);
}
