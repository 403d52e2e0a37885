"""What ``bench tiers`` found: times of stores and restores, and the answer in sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv4kv.runs.statistics import Estimate, divide
from dsv4kv.units import format_duration

_SURE = 0.01  # share of a time within which three digits of it are known


@dataclass(frozen=True)
class Way:
    """One direction between a GPU and the host, in nanoseconds."""

    time: Estimate  # gathered by one launch
    limit: Estimate  # one copy of as many bytes
    by_pages: Estimate  # a copy for every layer's piece

    @property
    def share(self) -> Estimate:
        """Of the limit's rate."""
        return divide(self.limit, self.time)


@dataclass(frozen=True)
class FamilyRow:
    """Objects of a family, from a GPU to the host's pinned memory and back."""

    family: str
    objects: int
    object_bytes: int  # of each
    store_way: Way
    restore_way: Way

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return self.objects * self.object_bytes


@dataclass(frozen=True)
class PrefixRow:
    """A prefix in one store; times in nanoseconds."""

    store: str  # its name
    tokens: int
    useful_bytes: int  # compressed entries and indexer keys of these tokens, without padding
    read_bytes: int  # read to restore it, the manifest left out
    stored: Estimate
    restored: Estimate  # to look it up, read, compare and put it into the cache
    computed_ns: float | None  # to compute it, as modelled, where that is known

    @property
    def back_ns(self) -> tuple[float, float]:
        """Until the request is where it was: least and most."""
        below, above = _reach(self.restored)
        return self.restored.value - below, self.restored.value + above

    @property
    def amplification(self) -> float:
        """Bytes read for each that is useful."""
        return self.read_bytes / self.useful_bytes if self.useful_bytes else 0.0


@dataclass
class TiersOutcome:
    """Everything that a run found."""

    model: str
    gpu: str  # the GPUs of the model of computing, in words
    cold: dict[str, str] = field(default_factory=dict)
    """How reads come from the disk, by store; nothing where there is none."""
    prefixes: list[PrefixRow] = field(default_factory=list)  # by store and length
    copies: list[FamilyRow] = field(default_factory=list)
    """Of the longest prefix, between GPU and host; nothing on a CPU."""
    checks: int = 0  # comparisons made
    failures: list[str] = field(default_factory=list)  # A sentence for each that failed

    def answers(self) -> list[str]:
        """Whether restoring is worth it: a sentence per store."""
        return [
            _worth(rows)
            for store in dict.fromkeys(row.store for row in self.prefixes)
            if (rows := [row for row in self.prefixes if row.store == store])
        ]


def _worth(rows: Sequence[PrefixRow]) -> str:
    longest = max(rows, key=lambda row: row.tokens)
    taken = f"{longest.store}: {longest.tokens:,} tokens are back in "
    taken += _at_most(longest.restored)
    if longest.computed_ns is None:
        return f"{taken}; how long computing them takes is not known for this model."
    worth = [row.tokens for row in rows if row.back_ns[1] < (row.computed_ns or 0)]
    unknown = len(worth) < sum(row.back_ns[0] < (row.computed_ns or 0) for row in rows)
    verdict = "at none of these lengths"
    if worth:
        verdict = "at every length" if len(worth) == len(rows) else f"from {min(worth):,} tokens"
    if unknown:
        verdict += ", as far as these times are known"
    computed = format_duration(longest.computed_ns, 2)
    return f"{taken}, computing them takes {computed} (modelled): restoring is worth it {verdict}."


def _reach(estimate: Estimate) -> tuple[float, float]:
    """How far its interval reaches below and above."""
    reach = math.inf if estimate.half_width is None else estimate.half_width
    return estimate.arms or (reach, reach)


def _at_most(time_ns: Estimate) -> str:
    """A time, or its upper end where the interval reaches 0."""
    below, above = _reach(time_ns)
    known = math.isinf(above) or below < time_ns.value
    at_most = "" if known else "less than "
    sure = not known or max(below, above) <= _SURE * time_ns.value
    time = time_ns.value + (0.0 if known else above)
    return at_most + format_duration(time, 3 if sure else 2)
