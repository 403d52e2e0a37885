// Copy whole pages: for blocks shared by requests, and for checkpoints.
//
// Compile-time: DSV_PAGE_BYTES, a multiple of 16.
#include "common.cuh"

// sources, targets: int64[count], distinct; no page is both. A number outside 0..num_pages-1 is
// skipped.
DSV_KERNEL void __launch_bounds__(256, 4)
    page_copy(u8* pages, const i64* sources, const i64* targets, int count, i64 num_pages) {
    begin_kernel();
    constexpr int kChunks = DSV_PAGE_BYTES / 16;
    for (i64 i = thread_id(); i < (i64)count * kChunks; i += thread_count()) {
        i64 source = sources[i / kChunks], target = targets[i / kChunks];
        if (source < 0 || source >= num_pages || target < 0 || target >= num_pages) continue;
        i64 offset = (i % kChunks) * 16;
        dsv_store(pages + target * DSV_PAGE_BYTES + offset,
                  dsv_load<uint4>(pages + source * DSV_PAGE_BYTES + offset));
    }
}
