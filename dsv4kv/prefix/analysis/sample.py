"""Simulating a policy on a part of a trace: whole families, in a cache scaled down with them.

After Waldspurger et al., "Efficient MRC construction with SHARDS" (FAST 2015), whose samples are
single keys drawn by hash; here whole families are. What is estimated is how far a policy is from
least recently used, whose hits are known exactly: most of what differs between samples cancels.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.analysis.families import find_families
from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.policy import replay_policy
from dsv4kv.prefix.analysis.reuse import Reuse, find_reuse

CLASSES = 5
"""Parts of a sample whose spread tells its error."""
_STUDENT_T = 2.776  # 97.5 %, CLASSES - 1 degrees of freedom
_MOST_COMMON = 0.1  # of the cache: common beginnings are taken to be cached at all times
_FEWEST = 25  # families in a sample: fewer have no spread to speak of


@dataclass(frozen=True)
class SampledHits:
    """What a policy would hit, from a sample.

    Attributes:
        name: The policy.
        hit_share: Share of all prompt tokens.
        low: Lower end of the 95 % interval.
        high: Upper end.
    """

    name: str
    hit_share: float
    low: float
    high: float

    def scaled(self, share: float) -> "SampledHits":
        """The same as a share of more tokens, of which ours are this share."""
        return SampledHits(self.name, *(share * v for v in (self.hit_share, self.low, self.high)))


@dataclass(frozen=True)
class _Part:
    """Some families of a trace.

    Attributes:
        table: Their requests.
        reuse: Their reuse.
        scale: Their own blocks as a share of the trace's, common beginnings left out.
    """

    table: PathTable
    reuse: Reuse
    scale: float

    def gain(self, policy: str, capacity_blocks: int) -> float:
        """Share of its tokens that a policy hits more than least recently used."""
        outcome = replay_policy(policy, self.table, self.reuse, capacity_blocks)
        plain = int(self.reuse.found_tokens(capacity_blocks).sum())
        return (outcome.hit_tokens - plain) / self.table.total_input_tokens


@dataclass(frozen=True)
class Sample:
    """A share of a trace's families, and the same in ``CLASSES`` parts.

    Attributes:
        share: Of all families.
        families: How many the whole trace has.
        common_blocks: Blocks before the families, which every part holds whole.
        whole: All that was drawn.
        classes: It in parts that have no family in common.
    """

    share: float
    families: int
    common_blocks: int
    whole: _Part
    classes: tuple[_Part, ...]

    def estimate(self, policy: str, reuse: Reuse, total_tokens: int, capacity: int) -> SampledHits:
        """SampledHits what a policy hits in a cache of ``capacity`` blocks on the whole trace.

        The classes' spread tells how much chance is in the sample; how far they are from it, what
        a smaller cache does to a policy apart from chance: both make the interval.

        Raises:
            ConfigError: There is no such policy.
        """
        gain = self.whole.gain(policy, self.scaled(self.whole, capacity))
        gains = [part.gain(policy, self.scaled(part, capacity)) for part in self.classes]
        chance = _STUDENT_T * float(np.std(gains, ddof=1)) / sqrt(CLASSES)
        error = chance + abs(gain - float(np.mean(gains)))
        plain, most = (
            int(reuse.found_tokens(blocks).sum()) / total_tokens for blocks in (capacity, None)
        )
        ends = (plain + gain, plain + gain - error, plain + gain + error)
        return SampledHits(policy, *(min(max(0.0, end), most) for end in ends))

    def lack(self, capacity: int) -> str:
        """Why nothing can be told of a cache of ``capacity`` blocks; empty where it can."""
        if self.common_blocks > _MOST_COMMON * capacity:
            return (
                f"{self.common_blocks:,} blocks are common beginnings of prompts, and "
                f"{_MOST_COMMON:.0%} of a cache of {capacity:,} blocks is the most: take a larger "
                "one, or --sample 1."
            )
        for part in self.classes:
            room, longest = self.scaled(part, capacity), int(part.reuse.blocks.max())
            if room < longest:
                return (
                    f"a sample of {self.share:.3g} is parted in {CLASSES}, and in one of them a "
                    f"cache of {capacity:,} blocks becomes {room:,}, fewer than its longest "
                    f"prompt has ({longest:,}): take larger samples or capacities, or --sample 1."
                )
        return ""

    def scaled(self, part: _Part, capacity: int) -> int:
        """Blocks of the cache that is to a part what ``capacity`` is to the whole trace."""
        return self.common_blocks + round(part.scale * (capacity - self.common_blocks))


def draw_sample(table: PathTable, reuse: Reuse, share: float) -> Sample:
    """Draw families by hash, and make sure that they can tell something.

    Args:
        table: The trace.
        reuse: Its reuse.
        share: Of its families, above 0 and below 1.

    Raises:
        ConfigError: Samples of this share have too few families, or one that is too large; the
            sentence says what can be done.
    """
    families = find_families(table, share / CLASSES)
    if families.count * share < _FEWEST:
        raise ConfigError(
            f"a sample of {share:.3g} holds {families.count * share:.0f} of {families.count:,} "
            f"families of prompts, and {_FEWEST} are the fewest: take larger samples, or "
            "--sample 1."
        )
    if families.heaviest_share > share / CLASSES:
        raise ConfigError(
            f"a sample of {share:.3g} is parted in {CLASSES}, and one family of prompts makes "
            f"{families.heaviest_share:.2%} of all block references: take --sample "
            f"{CLASSES * families.heaviest_share + 0.0005:.3f} or more, or --sample 1."
        )
    common = families.common_ids * table.block_tokens // reuse.grain_tokens
    place = _hash(families.of_request)
    limits = [(0.0, share)] + [
        (share * number / CLASSES, share * (number + 1) / CLASSES) for number in range(CLASSES)
    ]
    whole, *classes = (
        _take(table, reuse, common, (low <= place) & (place < high)) for low, high in limits
    )
    return Sample(share, families.count, common, whole, tuple(classes))


def _take(table: PathTable, reuse: Reuse, common: int, chosen: NDArray[np.bool_]) -> _Part:
    part = table.select(np.flatnonzero(chosen))
    own = find_reuse(part, reuse.grain_tokens)
    return _Part(part, own, (own.different_blocks - common) / (reuse.different_blocks - common))


def _hash(numbers: Ints) -> NDArray[np.float64]:
    """0 to below 1 by splitmix64 (Steele et al., OOPSLA 2014), the same on every machine."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
