"""dsv4kv: benchmark and profile the DeepSeek-V4 KV cache."""

__version__ = "0.1.0"
