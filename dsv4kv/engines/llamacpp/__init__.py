"""llama.cpp: ``llama-server`` with a DeepSeek-V4 GGUF, and its flags."""

from dsv4kv.engines import flags as fl
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

# ---- flags. Source: ``common/arg.cpp`` of ggml 0.25.


def _drafts(text: str) -> fl.Texts:
    found = fl.find_drafts(text.removeprefix("draft-"))
    return found | {"draft-tokens": "3"} if found else {}


FLAGS = (
    fl.flag("-m --model -hf --hf-repo -hfr LLAMA_ARG_MODEL LLAMA_ARG_HF_REPO", "the model",
            fl.as_is("model")),
    fl.flag("-c --ctx-size LLAMA_ARG_CTX_SIZE", "tokens of all slots, of each where unified",
            fl.SLOTTED),
    fl.flag("-np --parallel LLAMA_ARG_N_PARALLEL",
            "slots, each allocated whole at start; 4 unified ones unless given", "request-limit"),
    fl.switch("--kv-unified -kvu LLAMA_ARG_KV_UNIFIED", "every slot has the whole context",
              fl.switched("unified-slots", "on")),
    fl.flag("-ub --ubatch-size LLAMA_ARG_UBATCH", "window rows of a slot", "step-tokens"),
    fl.flag("-b --batch-size LLAMA_ARG_BATCH", "bounds the ubatch, 2,048 unless given", fl.BATCH),
    fl.flag("-ctk --cache-type-k LLAMA_ARG_CACHE_TYPE_K", "bytes of a row of every cache",
            lambda text: {"cache-dtype": text, fl.KEYS: text}),
    fl.flag("-ctv --cache-type-v LLAMA_ARG_CACHE_TYPE_V", "nothing: must equal --cache-type-k",
            lambda text: {fl.VALUES: text}),
    fl.switch("--swa-full", "window rows of the whole context, which V4 does not use",
              fl.switched("window-slots", "kept")),
    fl.flag("--spec-type", "draft-mtp: states × (1 + drafts), a window of its own", _drafts),
    fl.flag("--spec-draft-n-max --draft-max", "drafts, 3 unless given", "draft-tokens"),
    fl.flag("--flash-attn -fa", "nothing of the cache", fl.NOTHING),
    fl.flag("--gpu-layers -ngl --n-gpu-layers", "layers on the GPUs: all are assumed"),
    fl.flag("--tensor-split -ts", "layers of each GPU: equal shares are assumed"),
    fl.switch("--no-kv-offload -nkvo", f"{fl.HOST}: all caches are there"),
    fl.flag("--cache-ram -cram", f"{fl.HOST}: prompts without a slot, 8,192 MiB unless given"),
    fl.flag("--ctx-checkpoints", f"{fl.HOST}: 32 a slot of windows and states"),
    fl.flag("--n-cpu-moe -ncmoe", fl.WEIGHTS),
    fl.switch("--cpu-moe -cmoe", fl.WEIGHTS),
    fl.flag("--override-tensor -ot", fl.WEIGHTS),
    fl.flag("--fit", "lowers what is not given until 1 GiB is free: -c decides then"),
    fl.flag("--fit-target", fl.GRAPHS),
)  # fmt: skip


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
    flags=FLAGS,
    by_layers=True,
    slots=True,
    batch_tokens=2048,
    log_mark="llama_context:",
)
