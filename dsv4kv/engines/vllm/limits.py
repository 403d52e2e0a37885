"""What vLLM 0.33 refuses for these models, or is not sized with.

Source: ``v1/core/kv_cache_coordinator.py``, ``v1/hisparse/layout.py``.
"""

from dsv4kv.engines.limits import Limit

_HYBRID = (
    "DCP with hybrid KV cache layouts only supports full-attention, Mamba, and replicated draft "
    "groups"
)
LIMITS = (
    Limit("dcp", ("v4", "v41"), _HYBRID),
    Limit("dcp", ("flat",)),
    Limit("prefill_cp", ("v4",), "PCP only supports full attention and replicated draft groups."),
    Limit("prefill_cp", ("v41", "flat")),
    Limit("hisparse", ("v4", "v41"), "HiSparse does not support DeepSeek V4."),
    Limit("hisparse", ("flat",)),
)
