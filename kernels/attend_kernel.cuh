// The kernel of attend.cuh and of attend_groups.cuh, which have kThreads, Shared and attend_run().
DSV_KERNEL void __launch_bounds__(kThreads, 1)
    attend(const u8* ring, const i64* slots, const i64* seen, const u8* pages, const int* table,
           const i64* lengths, const int* indices, const u8* values, const float* sinks, u8* out,
           float* lse, float* scratch, Result* results, Parts* parts, int tokens, i64 num_rings,
           int size, int num_slots, int width, int choices, i64 num_pages, int heads, u32 scale) {
    begin_kernel();
    Shared& shared = *(Shared*)dynamic_shared();
    Window window = {ring, seen, num_rings, size};
    Others others = {pages, table, lengths, indices, num_slots, width, choices, num_pages};
    Queries queries = {values, sinks, heads, __uint_as_float(scale) * kLog2E};
    Outputs outputs = {out, lse, scratch, results, parts};
    Run run = run_of(window, others, slots, tokens, (heads + kHeads - 1) / kHeads);
    attend_run(run, slots, window, others, queries, outputs, shared);
}
