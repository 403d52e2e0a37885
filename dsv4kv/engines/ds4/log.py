"""Start-up lines of ds4."""

from dsv4kv.engines.logs.slots import changes, meaning, nearest, recover, split

__all__ = ["changes", "meaning", "nearest", "recover", "split"]
