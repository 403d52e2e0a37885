"""Eviction policies by name."""

from dsv4kv.choices import OFFLINE, OFFLINE_POLICIES, POLICIES, choose
from dsv4kv.core.policies import Policy, Schedule
from dsv4kv.errors import ConfigError


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
