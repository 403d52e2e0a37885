"""Eviction policies: what a full cache gives up first."""

from collections.abc import Sequence

from dsv4kv.choices import OFFLINE, OFFLINE_POLICIES, POLICIES, choose
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.tree import Ids


def make_policy(
    name: str, capacity: int | None = None, schedule: Sequence[Ids] | None = None
) -> Policy:
    """Make a policy by name.

    Args:
        name: One of ``POLICIES``, or ``OFFLINE``.
        capacity: Of the cache, in keys; ``s3fifo`` and ``arc`` need it.
        schedule: Chained ids of every request to come; ``OFFLINE`` needs it.

    Raises:
        ConfigError: There is no such policy, or it lacks what it needs.
    """
    if name == OFFLINE and schedule is None:
        raise ConfigError("the policy belady needs to know the whole trace beforehand.")
    kind = choose(POLICIES | OFFLINE_POLICIES, name, "an eviction policy").load()
    policy: Policy = kind(schedule if name == OFFLINE else capacity)
    return policy
