"""KTransformers: its fork of SGLang, with experts on the CPU."""

from dataclasses import replace

from dsv4kv.engines import flags as fl
from dsv4kv.engines.rule import Family
from dsv4kv.engines.sglang import BUILDS
from dsv4kv.engines.sglang import FAMILY as SGLANG

BUILD = replace(BUILDS[0], newest="0.7", oldest="0.7", draft_reserve_mib=0)
"""Its pools equal SGLang 0.5.12's: HCA states of every window page."""

FLAGS = (
    *SGLANG.flags,
    fl.flag("--kt-num-gpu-experts --kt-gpu-experts-ratio", fl.WEIGHTS),
    fl.flag("--kt-weight-path --kt-method --kt-cpuinfer --kt-threadpool-count",
            "nothing of the cache: experts on the CPU", fl.NOTHING),
    fl.flag("--kt-gpu-prefill-token-threshold",
            "with MXFP4 on sm_89 and sm_120 slots of four layers' experts are kept back"),
)  # fmt: skip

FAMILY = Family(
    "ktransformers",
    "KTransformers",
    "sizes:KtEngine",
    launch=replace(SGLANG.launch, words=(), images=("ktransformers",)),
    flags=FLAGS,
    base=SGLANG.name,
    offloads=True,
    marks=("--kt-weight-path", "--kt-method"),
)
