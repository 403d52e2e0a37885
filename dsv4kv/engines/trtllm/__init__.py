"""TensorRT-LLM: its one version that is sized."""

from dsv4kv.engines.rule import Family, Launch

FAMILY = Family(
    "trtllm",
    "TensorRT-LLM",
    "sizes:TrtllmEngine",
    launch=Launch(
        words=(("trtllm-serve", "serve"), ("trtllm-serve",)),
        images=("tensorrt-llm",),
        program="trtllm-serve",
        arguments="{model} --tp_size {tp} --ep_size {ep}",
        stages="--pp_size {pp}",
    ),
    has_flags=True,
)
