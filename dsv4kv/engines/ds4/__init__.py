"""ds4: antirez's server of one live session."""

from dsv4kv.engines.rule import Family, Launch

FAMILY = Family(
    "ds4",
    "ds4",
    "sizes:Ds4Engine",
    launch=Launch(words=(("ds4-server",), ("ds4",)), program="ds4-server", arguments="-m {model}"),
    has_flags=True,
    by_layers=True,
    logs="dsv4kv.engines.logs.slots",
)
