"""ds4: antirez's server of one live session."""

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

FAMILY = Family(
    "ds4",
    "ds4",
    "sizes:Ds4Engine",
    rules=RULES,
    launch=Launch(words=(("ds4-server",), ("ds4",)), program="ds4-server", arguments="-m {model}"),
    has_flags=True,
    by_layers=True,
    logs="dsv4kv.engines.logs.slots",
)
