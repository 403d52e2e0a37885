"""Flags of ``llama-server``. Source: ``common/arg.cpp`` of ggml 0.25."""

from dsv4kv.engines.flags import (
    BATCH,
    GRAPHS,
    HOST,
    NOTHING,
    SLOTTED,
    WEIGHTS,
    Flag,
    Meaning,
    Texts,
    as_is,
    counted,
    find_drafts,
    flag,
    switch,
    switched,
)


def _drafts(text: str) -> Texts:
    found = find_drafts(text.removeprefix("draft-"))
    return found | {"draft-tokens": "3"} if found else {}


FLAGS: tuple[Flag, ...] = (
    flag("-m --model -hf --hf-repo -hfr", "the model", as_is("model")),
    flag("-c --ctx-size", "tokens of all slots, of each where unified", counted(SLOTTED)),
    flag("-np --parallel", "slots, each allocated whole at start; 4 unified ones unless given",
         counted("request-limit")),
    switch("--kv-unified -kvu", "every slot has the whole context",
           switched("unified-slots", "on")),
    flag("-ub --ubatch-size", "window rows of a slot", counted("step-tokens")),
    flag("-b --batch-size", "bounds the ubatch", counted(BATCH)),
    flag("-ctk --cache-type-k", "bytes of a row of every cache", as_is("cache-dtype")),
    flag("-ctv --cache-type-v", "nothing: must equal --cache-type-k", NOTHING),
    switch("--swa-full", "window rows of the whole context, which V4 does not use",
           switched("window-slots", "kept")),
    flag("--spec-type", "draft-mtp: states × (1 + drafts), a window of its own",
         Meaning(_drafts)),
    flag("--spec-draft-n-max --draft-max", "drafts, 3 unless given", counted("draft-tokens")),
    flag("--flash-attn -fa", "nothing of the cache", NOTHING),
    flag("--gpu-layers -ngl --n-gpu-layers", "layers on the GPUs: all are assumed"),
    flag("--tensor-split -ts", "layers of each GPU: equal shares are assumed"),
    switch("--no-kv-offload -nkvo", f"{HOST}: all caches are there"),
    flag("--cache-ram -cram", f"{HOST}: prompts that lost their slot, 8,192 MiB"),
    flag("--ctx-checkpoints", f"{HOST}: 32 a slot of windows and states"),
    flag("--n-cpu-moe -ncmoe", WEIGHTS),
    switch("--cpu-moe -cmoe", WEIGHTS),
    flag("--override-tensor -ot", WEIGHTS),
    flag("--fit", "lowers what is not given until 1 GiB is free: -c decides then"),
    flag("--fit-target", GRAPHS),
)  # fmt: skip
"""In the order in which they are listed."""
