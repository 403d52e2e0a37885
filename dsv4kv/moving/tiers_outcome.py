"""What a run of ``bench tiers`` found: prefixes, the families of the longest, and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv4kv.measure.statistics import Estimate, divide
from dsv4kv.units import format_duration


@dataclass(frozen=True)
class Way:
    """One direction: bytes and how long they take.

    Attributes:
        time: Nanoseconds.
        limit: Nanoseconds that memory, or the disk, takes for objects as many and as large; None
            where that was not measured.
    """

    time: Estimate
    limit: Estimate | None = None

    @property
    def share(self) -> Estimate | None:
        """Of the limit's rate."""
        return divide(self.limit, self.time) if self.limit else None


@dataclass(frozen=True)
class FamilyRow:
    """A family of the longest prefix in one store.

    Attributes:
        store: Its name.
        family: Its name.
        objects: Of this prefix.
        object_bytes: Of each.
        store_way: From the cache's pools into the store.
        restore_way: Back into them, every object compared with its digest.
    """

    store: str
    family: str
    objects: int
    object_bytes: int
    store_way: Way
    restore_way: Way

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return self.objects * self.object_bytes

    def rate(self, way: Way) -> Estimate:
        """Bytes per nanosecond: GB/s."""
        return divide(Estimate(self.bytes, 0.0), way.time)


@dataclass(frozen=True)
class Direction:
    """Objects of a family from a GPU to the host, or back: nanoseconds.

    Attributes:
        gathered: By one launch and one copy.
        by_pages: By a copy for every layer's piece.
        whole: One copy of as many bytes: the limit.
    """

    gathered: Estimate
    by_pages: Estimate
    whole: Estimate


@dataclass(frozen=True)
class CopyRow:
    """A family between a GPU and the host's pinned memory.

    Attributes:
        family: Its name.
        objects: Moved at once.
        object_bytes: Of each.
        there: To the host.
        back: From it.
    """

    family: str
    objects: int
    object_bytes: int
    there: Direction
    back: Direction

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return self.objects * self.object_bytes


@dataclass(frozen=True)
class Overlap:
    """Decode steps during copies to the host: nanoseconds.

    Attributes:
        tokens: Of the request that decodes.
        family: What is copied.
        bytes: Of a copy.
        step_alone: A decode step, on the GPU's clock.
        step_beside: One while copies go on.
        copy_alone: A copy.
        copy_beside: One while steps go on.
    """

    tokens: int
    family: str
    bytes: int
    step_alone: Estimate
    step_beside: Estimate
    copy_alone: Estimate
    copy_beside: Estimate

    @property
    def sentence(self) -> str:
        """What either costs the other."""
        rates = [self.bytes / each.value for each in (self.copy_beside, self.copy_alone)]
        steps = [format_duration(each.value) for each in (self.step_alone, self.step_beside)]
        return (
            f"A decode step at {self.tokens:,} tokens takes {steps[0]}, and {steps[1]} while "
            f"{self.family} goes to the host at {rates[0]:.1f} GB/s ({rates[1]:.1f} alone)."
        )


@dataclass(frozen=True)
class PrefixRow:
    """A prefix in one store.

    Attributes:
        store: Its name.
        tokens: Of the prefix.
        pages: Blocks that are looked up.
        useful_bytes: Compressed entries and indexer keys of these tokens, without padding.
        read_bytes: Read to restore it, the manifest left out.
        resumed_tokens: That were not computed again.
        stored: Nanoseconds to store it.
        looked_up: Nanoseconds to find out where it can be resumed.
        restored: Nanoseconds to look it up, read, compare and put it into the cache.
        again_ns: Nanoseconds to compute what is missing after that, as modelled; None where that
            is not known.
        computed_ns: Nanoseconds to compute all of it, likewise.
    """

    store: str
    tokens: int
    pages: int
    useful_bytes: int
    read_bytes: int
    resumed_tokens: int
    stored: Estimate
    looked_up: Estimate
    restored: Estimate
    again_ns: float | None
    computed_ns: float | None

    @property
    def back_ns(self) -> float:
        """Until the request is where it was: restored, and the rest computed."""
        return self.restored.value + (self.again_ns or 0.0)

    @property
    def amplification(self) -> float:
        """Bytes read for each that is useful."""
        return self.read_bytes / self.useful_bytes if self.useful_bytes else 0.0


@dataclass
class TiersOutcome:
    """Everything that a run found.

    Attributes:
        model: Whose cache.
        gpu: The GPUs of the model of computing, in words.
        windows: Where windows are kept.
        exact: Whether that gives back the bits of a run that never left.
        cold: How reads come from the disk, by store; nothing where there is none.
        prefixes: By store and length.
        families: Of the longest prefix, by store.
        copies: Of the longest prefix, between GPU and host; nothing on a CPU.
        overlap: Decode steps during copies; None on a CPU.
        checks: Comparisons made.
        failures: A sentence for each that failed.
    """

    model: str
    gpu: str
    windows: str
    exact: bool = True
    cold: dict[str, str] = field(default_factory=dict)
    prefixes: list[PrefixRow] = field(default_factory=list)
    families: list[FamilyRow] = field(default_factory=list)
    copies: list[CopyRow] = field(default_factory=list)
    overlap: Overlap | None = None
    checks: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def resumes_earlier(self) -> bool:
        """Whether there is a prefix of which some tokens are computed again."""
        return any(row.resumed_tokens < row.tokens for row in self.prefixes)

    def answers(self) -> list[str]:
        """Is restoring worth it, which family costs most, what limits: a sentence for each store.

        Nothing where no prefix was restored.
        """
        return [
            " ".join([_worth(rows), *_dearest(self.families, store)])
            for store in dict.fromkeys(row.store for row in self.prefixes)
            if (rows := [row for row in self.prefixes if row.store == store])
        ]


def _worth(rows: Sequence[PrefixRow]) -> str:
    longest = max(rows, key=lambda row: row.tokens)
    taken = f"{longest.store}: {longest.tokens:,} tokens are back in "
    taken += format_duration(longest.back_ns)
    if longest.resumed_tokens < longest.tokens:
        taken += f", {longest.tokens - longest.resumed_tokens:,} of them computed again (modelled)"
    if longest.computed_ns is None:
        return f"{taken}; how long computing them takes is not known for this model."
    worth = [row.tokens for row in rows if row.back_ns < (row.computed_ns or 0)]
    verdict = "at none of these lengths"
    if worth:
        verdict = "at every length" if len(worth) == len(rows) else f"from {min(worth):,} tokens"
    computed = format_duration(longest.computed_ns)
    return f"{taken}, computing them takes {computed} (modelled): restoring is worth it {verdict}."


def _dearest(families: Sequence[FamilyRow], store: str) -> list[str]:
    rows = [row for row in families if row.store == store]
    if not rows:
        return []
    total = sum(row.restore_way.time.value for row in rows)
    first = max(rows, key=lambda row: row.restore_way.time.value)
    sentence = f"{first.family} takes {first.restore_way.time.value / total:.0%} of the time"
    share = first.restore_way.share
    if share is None:
        return [f"{sentence}."]
    limit = "memory" if store == "memory" else "the disk"
    bound = f"{limit} limits" if share.value > 0.5 else f"not {limit}, but the work on them"
    return [f"{sentence}, at {share.value:.0%} of what {limit} gives such objects: {bound}."]
