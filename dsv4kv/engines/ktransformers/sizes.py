"""KTransformers' sizes: SGLang's pools, without what it keeps for experts on the GPU."""

from dsv4kv.engines.ktransformers import BUILD, FAMILY
from dsv4kv.engines.sglang.sizes import SglangEngine


class KtEngine(SglangEngine):
    """Its one version: sglang-kt 0.7.2, and a log of May 2026."""

    family = FAMILY

    def __init__(self) -> None:
        super().__init__(BUILD)
        self.name = "ktransformers"
