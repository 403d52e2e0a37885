"""llama.cpp: ``llama-server`` with a DeepSeek-V4 GGUF."""

from dsv4kv.engines.rule import Family, Launch, Policy, Variant

RULES = {
    "llama.cpp": Variant(
        "slots; hits where one ends, or at its checkpoints",
        "llama.cpp",
        kinds=("v4",),
        default_for=("v4",),
        policy=Policy("slots", slots=4, checkpoints=True),
        block_tokens=128,
        remedies={
            "evicted_block": "more slots (-np), more host memory (--cache-ram)",
            "no_checkpoint": "a larger -ub sets the first checkpoint earlier",
        },
    )
}

FAMILY = Family(
    "llama.cpp",
    "llama.cpp",
    "sizes:LlamaEngine",
    rules=RULES,
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
