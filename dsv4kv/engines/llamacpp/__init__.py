"""llama.cpp: ``llama-server`` with a DeepSeek-V4 GGUF."""

from dsv4kv.engines.rule import Family, Launch

FAMILY = Family(
    "llama.cpp",
    "llama.cpp",
    "sizes:LlamaEngine",
    launch=Launch(
        words=(("llama-server",), ("llama-cli",)),
        images=("llama.cpp",),
        program="llama-server",
        arguments="-m {model}",
    ),
    has_flags=True,
    by_layers=True,
    logs="dsv4kv.engines.logs.slots",
    log_mark="llama_context:",
)
