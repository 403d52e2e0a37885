"""Eviction policies by name."""

from collections.abc import Sequence

from dsv4kv.choices import OFFLINE, OFFLINE_POLICIES, POLICIES, choose
from dsv4kv.core.policies import Policy
from dsv4kv.errors import ConfigError


def make_policy(
    name: str, capacity: int = 1 << 62, schedule: Sequence[list[int]] | None = None
) -> Policy:
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
