"""Flags of KTransformers: SGLang's, and where experts are."""

from dsv4kv.engines.flags import NOTHING, WEIGHTS, Flag, flag
from dsv4kv.engines.sglang.flags import FLAGS as OF_SGLANG

FLAGS: tuple[Flag, ...] = (
    *OF_SGLANG,
    flag("--kt-num-gpu-experts --kt-gpu-experts-ratio", WEIGHTS),
    flag("--kt-weight-path --kt-method --kt-cpuinfer --kt-threadpool-count",
         "nothing of the cache: experts on the CPU", NOTHING),
    flag("--kt-gpu-prefill-token-threshold",
         "with MXFP4 on sm_89 and sm_120 slots of four layers' experts are kept back"),
)  # fmt: skip
"""In the order in which they are listed."""
