"""Simulating a policy on a part of a trace: whole families, in a cache scaled down with them.

After Waldspurger et al., "Efficient MRC construction with SHARDS" (FAST 2015), whose samples are
single keys drawn by hash; here whole families are. What is estimated is how far a policy is from
least recently used, whose hits are known exactly: most of what differs between samples cancels.

Families of prompts: those that share blocks beyond what very many prompts begin with. A sample of
a trace must hold whole families: a block without those before it could never be hit, and reuse
between prompts would be cut. A beginning that very many prompts share (a system prompt) would make
one family of them all; it is taken as common, and families start behind it.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dsv4kv.choices import OFFLINE
from dsv4kv.core.tree import PrefixTree
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.outcome import Losses, Outcome
from dsv4kv.prefix.paths import Ints, PathTable, Reuse, find_reuse, number_prompts
from dsv4kv.prefix.policies import make_policy

_COMMON = 0.05
"""Share of all prompts that a beginning must have to be common: used as often as that it is cached
at all times. One long conversation is not, however heavy it is."""


@dataclass(frozen=True)
class Families:
    """The families of a trace.

    Attributes:
        of_request: int64[requests]: number of the request's family, from 0.
        count: Families.
        common_ids: Ids that are before families, all such beginnings together.
        heaviest_share: Share of all block references that the heaviest family makes.
    """

    of_request: Ints
    count: int
    common_ids: int
    heaviest_share: float


def find_families(table: PathTable, most_share: float) -> Families:
    """Part prompts by their first id, and heavy families where they branch.

    Args:
        table: The trace.
        most_share: A family with more than this share of all block references is parted further,
            if its beginning is common.
    """
    ids = _Ids(table)
    of_request = np.zeros(len(table), np.int64)
    common = count = 0
    pending = [(np.arange(len(table)), 0)]
    while pending:
        members, depth = pending.pop()
        kin = ids.group(members, depth)
        of_request[members] = count + kin
        count += int(kin.max()) + 1
        heavy = np.bincount(kin, table.counts[members]) > most_share * table.references
        common_to_many = np.bincount(kin) >= _COMMON * len(table)
        for group in np.flatnonzero(heavy & common_to_many).tolist():
            among = members[kin == group]
            shared = ids.shared(among, depth)
            if (table.counts[among] > shared).any():  # else they are equal and cannot be parted
                common += shared - depth
                pending.append((among, shared))
    numbers, of_request = np.unique(of_request, return_inverse=True)
    heaviest = np.bincount(of_request, table.counts).max() / table.references
    return Families(of_request, len(numbers), common, float(heaviest))


class _Ids:
    """Ids of many prompts at one depth: all runs are end to end, one prompt after the other."""

    def __init__(self, table: PathTable) -> None:
        self._counts, self._starts = table.counts, table.starts
        self._before = table.counts.cumsum() - table.counts
        ends = np.repeat(self._before, np.diff(table.offsets)) + table.ends
        self._begins, self._ends = np.concatenate([[0], ends[:-1]]), ends

    def at(self, requests: Ints, depth: int) -> Ints:
        """int64[requests]: the id of block ``depth`` of prompts that have it."""
        place = self._before[requests] + depth
        run = self._ends.searchsorted(place, side="right")
        ids: Ints = self._starts[run] + place - self._begins[run]
        return ids

    def group(self, requests: Ints, depth: int) -> Ints:
        """int64[requests]: equal numbers for equal ids; prompts that end before are alone."""
        longer = self._counts[requests] > depth
        groups = np.zeros(len(requests), np.int64)
        ids, groups[longer] = np.unique(self.at(requests[longer], depth), return_inverse=True)
        groups[~longer] = len(ids) + np.arange(int((~longer).sum()))
        return groups

    def shared(self, requests: Ints, depth: int) -> int:
        """Ids that all these prompts begin with, which are more than ``depth``."""
        low, high = depth + 1, int(self._counts[requests].min())
        while low < high:  # an id stands for all before it, too
            middle = (low + high + 1) // 2
            ids = self.at(requests, middle - 1)
            low, high = (middle, high) if (ids == ids[0]).all() else (low, middle - 1)
        return low


def replay_policy(name: str, table: PathTable, reuse: Reuse, capacity_blocks: int) -> Outcome:
    """Serve a trace, one request after the other, from a cache that a policy empties.

    Raises:
        ConfigError: There is no such policy, or the longest prompt does not fit the cache.
    """
    longest = int(reuse.blocks.max())
    if capacity_blocks < longest:
        raise ConfigError(
            f"a cache of {capacity_blocks:,} blocks is smaller than the longest prompt, "
            f"{longest:,} blocks of {reuse.grain_tokens} tokens."
        )
    numbered = number_prompts(table, reuse.grain_tokens, whole_blocks=False)
    paths = [numbered.path(request) for request in range(len(table))]
    policy = make_policy(name, capacity_blocks, paths if name == OFFLINE else None)
    tree = PrefixTree(policy)
    found = np.array(tree.serve(paths, capacity_blocks), np.int64)
    tokens = np.minimum(found * reuse.grain_tokens, reuse.tokens)
    lost = int((reuse.found_tokens(None) - tokens).sum())
    return Outcome(
        name,
        tokens,
        table.total_input_tokens,
        Losses(evicted_block=lost),
        found_tokens=int(tokens.sum()),
        found_blocks=int(found.sum()),
    )


CLASSES = 5
"""Parts of a sample, whose spread gives its error."""
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

        The classes' spread shows how much chance is in the sample; how far they are from it, what
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
        """Why nothing can be said of a cache of ``capacity`` blocks; empty where it can."""
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
    """Draw families by hash, and make sure that they are enough to estimate from.

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
    place = hash_numbers(families.of_request)
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


def hash_numbers(numbers: Ints) -> NDArray[np.float64]:
    """0 to below 1 by splitmix64 (Steele et al., OOPSLA 2014), the same on every machine."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) / 2.0**53


LONG_REFERENCES = 300_000_000
"""Block references × policies × capacities from which on a sample is drawn unasked: half a minute
for long agentic prompts, minutes for short ones."""
_SMALLEST, _LARGEST = 0.05, 0.4  # a smaller sample says little, a larger one saves little
_RUNS = 2  # a sample is simulated as a whole, and once more in its classes


@dataclass(frozen=True)
class Sampling:
    """What policies were simulated on.

    Attributes:
        automatic: Whether a sample was wanted because the whole trace would take long.
        share: Of the families that were simulated; 1 for the whole trace.
        families: Families of the trace, where a sample was drawn.
        refused: Why the whole trace was simulated though a sample was wanted, at some capacities
            or at all.
    """

    automatic: bool = False
    share: float = 1.0
    families: int = 0
    refused: str = ""


class Simulation:
    """Policies at any capacity.

    Attributes:
        sampling: What they are simulated on.
    """

    def __init__(
        self,
        table: PathTable,
        reuse: Reuse,
        names: tuple[str, ...],
        share: float | None,
        capacities: list[int],
    ) -> None:
        """Draw the sample that was asked for, or one where the simulation would take long.

        Args:
            table: The trace.
            reuse: Its reuse.
            names: Policies.
            share: Of all families, 1 for the whole trace; None leaves the choice here.
            capacities: Blocks of every cache.

        Raises:
            ConfigError: No share, or one that cannot be used and was asked for.
        """
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"--sample {share}: give a share above 0, at most 1 (everything).")
        self._table, self._reuse, self._names = table, reuse, names
        self._sample: Sample | None = None
        self._whole: set[int] = set()
        self.sampling = Sampling()
        wanted = share or self._fitting_share(len(capacities))
        if not names or wanted >= 1:
            return
        try:
            sample = draw_sample(table, reuse, wanted)
            lacks = {c: lack for c in capacities if (lack := sample.lack(c))}
            if share is not None and lacks:
                raise ConfigError(lacks[min(lacks)])
        except ConfigError as error:
            if share is not None:
                raise
            self.sampling = Sampling(automatic=True, refused=str(error))
            return
        self._sample, self._whole = sample, set(lacks)
        refused = lacks[min(lacks)] if lacks else ""
        self.sampling = Sampling(share is None, wanted, sample.families, refused)

    def _fitting_share(self, capacities: int) -> float:
        """The largest sample that does not take long; 1 where the whole trace does not."""
        references = int(self._reuse.blocks.sum()) * len(self._names) * capacities
        fitting = LONG_REFERENCES / (_RUNS * max(1, references))
        return 1.0 if fitting > _LARGEST else max(_SMALLEST, fitting)

    def outcomes(self, blocks: int | None) -> tuple[Outcome, ...]:
        """What policies do on the whole trace; nothing where a sample estimates it."""
        if blocks is None or self._is_sampled(blocks):
            return ()
        return tuple(replay_policy(n, self._table, self._reuse, blocks) for n in self._names)

    def estimates(self, blocks: int | None) -> tuple[SampledHits, ...]:
        """What the sample estimates of them."""
        if blocks is None or not self._is_sampled(blocks):
            return ()
        assert self._sample is not None
        total = self._table.total_input_tokens
        return tuple(self._sample.estimate(n, self._reuse, total, blocks) for n in self._names)

    def _is_sampled(self, blocks: int) -> bool:
        return self._sample is not None and blocks not in self._whole
