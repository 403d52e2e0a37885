"""Prompt tokens that hit, and why other tokens seen before did not."""

from collections.abc import Callable, Sequence

from dsv4kv.core.served import Hit, Served

REASONS = (
    "evicted_block",
    "evicted_checkpoint",  # the block was there; a checkpoint of window and state was too, once
    "no_checkpoint",  # the block was there, and no checkpoint that far was ever written
    "draft",  # what a draft's layer needs after them is not what the cache has
    "alignment",  # they are no whole block, page or period of the rule
    "last_token",  # a hit must leave the last token of a prompt to be computed
    "replay",  # computed again to have the window
)
"""Why tokens are lost that an unbounded cache without rules would have hit."""


class SeenIds:
    """Remembers chains of block ids.

    An id stands for its history, so it is always the same one that comes before it: wherever ids
    count up, every chain that has one of them has all before it in that run. A run is known by
    its first id and by how much of it was ever seen. A prompt's last id may be partial, and may
    keep its number while its block fills up.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._missing: dict[int, int] = {}  # by a last id: its tokens that no prompt had

    def add(self, starts: list[int], counts: list[int], id_tokens: int, tokens: int) -> int:
        """Remember a prompt's runs of ids; returns its leading tokens that an earlier one had."""
        seen, missing, known, place, last = self._seen, self._missing, 0, 0, -1
        while place < len(starts) and seen.get(starts[place], 0) >= counts[place]:
            known += counts[place]
            last = starts[place] + counts[place] - 1
            place += 1
        if place < len(starts):
            more = seen.get(starts[place], 0)
            known += more
            if more:
                last = starts[place] + more - 1
        seen_tokens = min(known * id_tokens - missing.get(last, 0), tokens) if known else 0
        if place < len(starts):
            missing.pop(last, 0)  # another id follows it
            known += sum(counts[place:]) - more
            last = starts[-1] + counts[-1] - 1
            missing[last] = known * id_tokens - tokens
            for start, count in zip(starts[place:], counts[place:], strict=True):
                seen[start] = count
        elif last in missing:
            missing[last] = min(missing[last], known * id_tokens - tokens)
        if missing.get(last, 1) <= 0:
            del missing[last]
        return seen_tokens


class ReuseTally:
    """Counts over first admissions, as ``runs.replay.Reuse`` explains them."""

    def __init__(
        self,
        runs_of: Callable[[Sequence[int]], tuple[list[int], list[int]]],
        shared_tokens: int,
        draft_needs: tuple[int, int] = (0, 0),
        uncovered_tokens: int = 1,
    ) -> None:
        """``runs_of``: first id and length of every run of ids that are no plain list."""
        self.shared_tokens = shared_tokens  # tokens of a shared block
        self.uncovered_tokens = uncovered_tokens  # tokens at a prompt's end that no hit covers
        # tokens after a hit that must be known for drafts, and tokens it drops
        self.draft_needs = draft_needs
        self.requests = self.prompt_tokens = self.prompt_blocks = 0
        self.found_blocks = 0
        self.in_flight_tokens = 0  # lost because another request was just computing them
        self.seen_tokens = self.saved_tokens = 0
        self.lost = dict.fromkeys(REASONS, 0)
        self._runs_of, self._seen = runs_of, SeenIds()
        self._pending: set[int] = set()  # seen, and not stored yet

    def store(self, served: Served, count: int) -> None:
        """Remember that the first ``count`` blocks of a prompt were cached once."""
        if count > served.stored:
            self._pending.difference_update(served.keys[served.stored : count])
            served.stored = count

    def count(self, served: Served, hit: Hit) -> None:
        """Count a first admission; ``served.position`` is its first computed token."""
        size, keys = self.shared_tokens, served.keys
        ids = served.ids
        runs = _list_runs(ids) if isinstance(ids, (tuple, list)) else self._runs_of(ids)
        seen_tokens = self._seen.add(runs[0], runs[1], served.id_tokens, served.input_tokens)
        saved = served.saved = served.position
        seen = seen_tokens // size
        usable = min(seen, max(0, served.input_tokens - self.uncovered_tokens) // size)
        key_tokens, dropped_tokens = self.draft_needs
        alike = (seen_tokens - key_tokens) // size - dropped_tokens // size
        reach = max(hit.resumed, min(usable, alike))
        known = min(seen, len(keys))
        served.stored = known
        while served.stored and keys[served.stored - 1] in self._pending:
            served.stored -= 1
        self._pending.update(keys[known:])
        stored, found = min(served.stored, reach), min(hit.found, reach)
        marked = min(hit.marked, reach)
        lost = self.lost
        lost["draft"] += (usable - reach) * size
        lost["evicted_block"] += max(0, stored - found) * size
        lost["evicted_checkpoint"] += (marked - hit.resumed) * size
        lost["no_checkpoint"] += (found - marked) * size
        lost["alignment"] += seen_tokens - seen * size
        lost["last_token"] += (seen - usable) * size
        lost["replay"] += hit.resumed * size - saved
        self.in_flight_tokens += max(0, reach - max(stored, found)) * size
        self.requests += 1
        self.prompt_tokens += served.input_tokens
        self.prompt_blocks += len(keys)
        self.found_blocks += hit.found
        self.seen_tokens += seen_tokens
        self.saved_tokens += saved


def _list_runs(ids: Sequence[int]) -> tuple[list[int], list[int]]:
    starts, counts, following = list[int](), list[int](), -1
    for number in ids:
        if counts and number == following:
            counts[-1] += 1
        else:
            starts.append(number)
            counts.append(1)
        following = number + 1
    return starts, counts
