"""ds4: antirez's server of one live session."""

from dsv4kv.engines import flags as fl
from dsv4kv.engines.rule import Family, Launch, Policy, Variant

RULES = {
    "ds4": Variant(
        "one live session, gone on with or replaced; nothing on disk",
        "ds4",
        kinds=("v4",),
        default_for=("v4",),
        policy=Policy("slots", slots=1),
        block_tokens=128,
        remedies={"evicted_block": "--kv-disk-dir, which this rule does not have"},
    )
}

FLAGS = (
    fl.flag("--model -m", "the model", fl.as_is("model")),
    fl.flag("--ctx -c", "tokens of the one live session", "context"),
    fl.flag("DS4_METAL_PREFILL_CHUNK", "rows of the ring and scratch", "step-tokens"),
    fl.flag("--kv-disk-dir", "sessions on disk: 13,764 B a token and 22.9 MiB each"),
    fl.flag("--kv-disk-space-mb", f"{fl.HOST}: disk for sessions, 4,096 MB unless given"),
)

FAMILY = Family(
    "ds4",
    "ds4",
    "sizes:Ds4Engine",
    rules=RULES,
    launch=Launch(words=(("ds4-server",), ("ds4",)), program="ds4-server", arguments="-m {model}"),
    flags=FLAGS,
    by_layers=True,
    slots=True,
)
