"""How much a server holds before a prompt is lost, and whether a tier brings it back."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from dsv4kv.diagnose.probe.conclusions import Conclusion, Known, undecided
from dsv4kv.diagnose.probe.questioner import Questioner, Refused, Spent

FOREIGN_STEPS = 16
"""Blocks of a prompt that others' are pushed out with."""
_SLOWER = 2.0


@dataclass
class _Trials:
    """A prompt, so many tokens of others, and the prompt again: whether it is lost.

    Attributes:
        tokens: What the prompt hits as long as it is whole.
        near: Times to the first token of hits with few tokens in between; s.
        far: And with more of them.
    """

    q: Questioner
    known: Known
    tokens: int
    near: list[float] = field(default_factory=list)
    far: list[float] = field(default_factory=list)

    def lost(self, foreign_steps: int, sent: int = 1) -> bool:
        """``sent``: how often the prompt is, before."""
        q, lost, step = self.q, self.known.lost, self.known.step
        prompt = q.draw(self.tokens + lost + 1)
        for _ in range(sent):
            q.ask(prompt)
        whole, rest = divmod(foreign_steps, FOREIGN_STEPS)
        for steps in [*[FOREIGN_STEPS] * whole, *([rest] if rest else [])]:
            q.ask(q.draw(steps * step + 1 + lost % step))  # so that its last block is kept, too
        answer = q.ask(prompt)
        hit = answer.cached_tokens == self.tokens
        times = self.near if foreign_steps <= FOREIGN_STEPS else self.far
        times.extend([answer.ttft_s] * hit)
        return not hit


def capacity(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """How many tokens of others come in between until a prompt no longer hits whole."""
    trials = _Trials(q, known, known.whole(known.smallest - 1 + known.lost + 3 * known.step))
    stored = _moved(q, _STORES)
    low, high, why = 0, None, ""
    try:
        if any(trials.lost(0) for _ in range(_NEAR)):
            known.why = "a prompt is lost with nothing in between"
            return
        reach = FOREIGN_STEPS
        while not trials.lost(reach):
            low, reach = reach, 2 * reach
        high = reach
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if trials.lost(middle) else (middle, high)
        if trials.lost(low) or not trials.lost(high):
            known.why = "the same tokens in between lose a prompt once, and once they do not"
            return
        if _moved(q, _STORES) > stored and not _loaded(q):
            trials.lost(high, sent=3)  # some tiers store what is asked for again
    except (Spent, Refused) as end:
        why = str(end)
    held = trials.tokens + (known.lost // known.step + low) * known.step
    if high is None:
        said = f"more than {held:,} tokens are held before one is lost; {why}"
        yield undecided("capacity", said)
    else:
        error = (high - low) * known.step
        said = f"{held:,} tokens (+ {error:,}) are held before a prompt is lost"
        yield Conclusion("capacity", f"{said}{'; ' * bool(why)}{why}", held)
    yield from _tiers(q, stored, (trials.near, trials.far), is_lost=high is not None)


_NEAR = 3
"""Hits with nothing in between, whose times stand for the GPU's."""
_STORES = ("backuped_tokens", "kv_offload_store", "kv_offload_bytes", "simple_kv_offload_store",
           "kv_offload_total_bytes")  # fmt: skip
_LOADS = ("load_back_tokens", "prefetched_tokens", "kv_offload_load", "external_prefix_cache_hits",
          "simple_kv_offload_load")  # fmt: skip


def _moved(q: Questioner, words: tuple[str, ...]) -> float:
    return sum(value for key, value in q.counted.grown.items() if any(w in key for w in words))


def _loaded(q: Questioner) -> float:
    """What the server says came back from beyond the GPU; answers count tokens."""
    return q.restored or _moved(q, _LOADS)


def _tiers(
    q: Questioner,
    stored: float,
    times: tuple[list[float], list[float]],
    *,
    is_lost: bool,
) -> Iterator[Conclusion]:
    """Whether anything comes back from beyond the GPU's memory."""
    near, far = times
    if loaded := _loaded(q):
        yield Conclusion("tier", f"a tier is read back: the server counts {loaded:,.0f}", "read")
    elif _moved(q, _STORES) > stored and is_lost:
        yield Conclusion(
            "tier",
            "a tier stores and is never read: prompts are lost while its store counters grow",
            "never read",
            "bad",
            "look at the tier's lookups: keys, its window groups, the policy that prefetches",
        )
    elif near and far and min(far) > _SLOWER * max(near):
        said = f"hits after others' tokens come {median(far) / median(near):.1f} times later"
        yield Conclusion("tier", f"a slower tier is read back: {said}", "read")
    elif is_lost:
        yield Conclusion("tier", "no tier brings back what the GPU has lost", "none")
    else:
        yield undecided("tier", "nothing was lost that a tier could bring back")
