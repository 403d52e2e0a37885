"""What SGLang 0.5.23 refuses for these models, or is not sized with.

Source: ``arg_groups/deepseek_v4_hook.py``, ``arg_groups/hisparse_hook.py``.
"""

from dsv4kv.engines.limits import Limit

_ALL = ("v4", "v41", "flat")
LIMITS = (
    Limit("dcp", _ALL),
    Limit("prefill_cp", _ALL),
    Limit("hisparse", ("v41",), "DeepSeek-V4.1 does not support HiSparse yet"),
    Limit("hisparse", ("flat",)),
    Limit("hisparse_radix", ("v4",),
          "Hierarchical sparse attention currently requires --disable-radix-cache."),
    Limit("unified_memory", _ALL),
    Limit("unified_kv", ("v41",), "DeepSeek-V4.1 does not support the unified KV layout yet"),
    Limit("unified_kv", ("v4", "flat")),
)  # fmt: skip
