"""Flags of ``ds4-server``."""

from dsv4kv.engines.flags import HOST, Flag, as_is, counted, flag

FLAGS: tuple[Flag, ...] = (
    flag("--model -m", "the model", as_is("model")),
    flag("--ctx -c", "tokens of the one live session", counted("context")),
    flag("DS4_METAL_PREFILL_CHUNK", "rows of the ring and scratch", counted("step-tokens")),
    flag("--kv-disk-dir", "sessions on disk: 13,764 B a token and 22.9 MiB each"),
    flag("--kv-disk-space-mb", f"{HOST}: disk for sessions, 4,096 MB"),
)
"""In the order in which they are listed."""
