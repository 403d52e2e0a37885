"""Eviction policies: what a full cache gives up first."""

from collections.abc import Sequence

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.policies.arc import ARC
from dsv4kv.prefix.policies.belady import Belady
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.policies.s3fifo import S3FIFO
from dsv4kv.prefix.policies.scored import FIFO, GDSF, LFU, LRU, AgedLFU
from dsv4kv.prefix.policies.sieve import SIEVE
from dsv4kv.prefix.tree import Ids

POLICIES: dict[str, type[Policy]] = {
    "lru": LRU,
    "fifo": FIFO,
    "lfu": LFU,
    "lfu-aged": AgedLFU,
    "gdsf": GDSF,
    "sieve": SIEVE,
    "s3fifo": S3FIFO,
    "arc": ARC,
}
OFFLINE = "belady"


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
    if name == OFFLINE:
        if schedule is None:
            raise ConfigError("the policy belady needs to know the whole trace beforehand.")
        return Belady(schedule)
    if name not in POLICIES:
        allowed = ", ".join([*POLICIES, OFFLINE])
        raise ConfigError(f"{name!r} is no eviction policy: choose one of {allowed}.")
    return POLICIES[name](capacity)
