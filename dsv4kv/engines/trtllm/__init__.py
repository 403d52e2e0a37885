"""TensorRT-LLM: its one version that is sized."""

from dsv4kv.engines.rule import Family, Launch

FAMILY = Family(
    "trtllm",
    "TensorRT-LLM",
    "sizes:TrtllmEngine",
    launch=Launch(
        words=(
            ("trtllm-serve", "serve"),
            ("trtllm-serve",),
            ("tensorrt_llm.commands.serve", "serve"),
            ("dynamo.trtllm",),
        ),
        images=("tensorrt-llm", "tensorrtllm"),
        program="trtllm-serve",
        arguments="{model} --tp_size {ranks} --ep_size {ep}",
        stages="--pp_size {pp}",
        replicas="--enable_attention_dp",
        ranks_are_replicas=True,
    ),
    has_flags=True,
    block_tokens=128,
)
