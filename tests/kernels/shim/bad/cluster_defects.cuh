// A cluster of two blocks that is wrong on purpose: the harness has to notice every mistake.
//
// A block copies 32 bytes of its own from `source`, sends the first 16 to the other block, and writes
// what it got to `target`. `wrong` is the number of its mistake, 0 for none.
#include "../../../../kernels/cluster.cuh"

struct Shared {
    uint4 copied[2], received;
    ByteBarrier arrived;
};

DSV_KERNEL void exchange(const u8* source, u8* target, int wrong) {
    Shared& shared = *(Shared*)dynamic_shared();
    int rank = cluster_rank(), other = wrong == 7 ? 2 : 1 - rank;
    bool first = threadIdx.x == 0;
    if (wrong != 1 && wrong != 11) cluster_begin();
    if (wrong != 2 && first) {
        start_barriers(&shared.arrived, 1, 1);
        expect_bytes(&shared.arrived, 1, 32);
    }
    __syncthreads();
    if (first) {
        copy_bytes(shared.copied, source + rank * 32 + (wrong == 4), wrong == 3 ? 16 : 32,
                   &shared.arrived);
    }
    uint4 early = shared.copied[0];
    if (wrong != 5) wait_bytes(&shared.arrived);
    if (wrong != 11) cluster_wait();
    if (first) store_to(&shared.received, other, wrong == 6 ? early : shared.copied[0]);
    if (wrong == 8 && threadIdx.x == 1) return;
    if (wrong == 10) cluster_arrive();
    cluster_arrive();
    cluster_wait();
    if (wrong == 9) {
        if (rank == 0) return;
        store_to(&shared.received, other, early);
    }
    if (first) dsv_store(target + rank * 16, shared.received);
}
