"""This toolkit's own cache, sized like an engine's."""

from dsv4kv.engines.rule import Family

FAMILY = Family("dsv4kv", "this toolkit's pools", "sizes:OwnEngine")
