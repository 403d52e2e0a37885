"""Eviction policies by name."""

from dsv4kv.choices import Choice, choose
from dsv4kv.core.policies import Policy, Schedule
from dsv4kv.errors import ConfigError

POLICIES = {
    "lru": Choice("the least recently used", "core.policies:LRU"),
    "fifo": Choice("the one stored first", "core.policies:FIFO"),
    "lfu": Choice("the one used least often", "core.policies:LFU"),
    "lfu-aged": Choice("the one used least often, old uses fading", "core.policies:AgedLFU"),
    "gdsf": Choice("the least uses for its size, aged by what was evicted", "core.policies:GDSF"),
    "sieve": Choice("the next one not used since a hand passed it", "core.policies:SIEVE"),
    "s3fifo": Choice(
        "what a small queue saw used less than twice, then the main queue's oldest",
        "core.policies:S3FIFO",
    ),
    "arc": Choice("by recency or frequency, whichever lost less lately", "core.policies:ARC"),
}
"""What is evicted first; children always before their parents."""

OFFLINE = "belady"

OFFLINE_POLICIES = {
    OFFLINE: Choice("the one needed last, a bound that knows the trace", "core.policies:Belady")
}


def make_policy(name: str, capacity: int = 1 << 62, schedule: Schedule | None = None) -> Policy:
    """Make a policy by name.

    Args:
        name: One of ``POLICIES``, or ``OFFLINE``.
        capacity: Of the cache, in keys.
        schedule: Chained keys of every request to come; ``OFFLINE`` needs it.

    Raises:
        ConfigError: There is no such policy, or it lacks what it needs.
    """
    if name == OFFLINE and schedule is None:
        raise ConfigError("the policy belady needs to know the whole trace beforehand.")
    kind = choose(POLICIES | OFFLINE_POLICIES, name, "an eviction policy").load()
    policy: Policy = kind(schedule if name == OFFLINE else capacity)
    return policy
