"""KTransformers: its fork of SGLang, with experts on the CPU."""

from dataclasses import replace

from dsv4kv.engines.rule import Family
from dsv4kv.engines.sglang import BUILDS
from dsv4kv.engines.sglang import FAMILY as SGLANG

BUILD = replace(BUILDS[0], newest="0.7", oldest="0.7", draft_reserve_mib=0)
"""Its pools equal SGLang 0.5.12's: HCA states of every window page."""

FAMILY = Family(
    "ktransformers",
    "KTransformers",
    "sizes:KtEngine",
    launch=replace(SGLANG.launch, words=(), images=("ktransformers",)),
    has_flags=True,
    base=SGLANG.name,
    offloads=True,
    logs="dsv4kv.engines.sglang.log",
    marks=("--kt-weight-path", "--kt-method"),
)
