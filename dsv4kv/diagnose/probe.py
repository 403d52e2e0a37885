"""Experiments on a server's prefix cache: what to ask, and what follows from the answers.

Every one is a function of a questioner and of what those before it found. What does not follow
from the answers is reported as undecidable, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

from dsv4kv.diagnose.questioner import Answer, Questioner, Refused, Spent, Unreachable
from dsv4kv.errors import ConfigError
from dsv4kv.units import counted

SHORT_TOKENS, FIRST_TOKENS, LONGEST_TOKENS = 1_000, 4_200, 40_000
EDGES = (64, 128, 256, 4_096, 16_384)  # sizes of blocks, retention intervals and chunks
INSIDE_TOKENS = (5_500, 6_500, 9_000, 13_900)
"""Where prompts part: no two intervals of a power of two leave the same hits at all of them."""
_TRIALS, _OUTPUTS = 6, 8
_NOISE_FACTOR = 3.0
_MOST_NOISE_NATS = 1.0  # cold answers that differ by more are like nothing
_ROUNDING_NATS = 0.25
"""Two steps of a logit between 16 and 32 in bf16: a hit is computed in other shapes than a cold
prompt, while two cold ones have the same and may be equal to the bit."""
_REPEATS = 4  # of a prompt, to see whether it hits each time
_LEAST_LIKELY = -20.0
_FOREIGN_STEPS = 16  # blocks of a prompt that others' are pushed out with
_NEAR = 3  # how often what looks like a loss is tried again
_STORES = ("backuped_tokens", "kv_offload_store", "kv_offload_bytes", "simple_kv_offload_store",
           "kv_offload_total_bytes")  # fmt: skip
_LOADS = ("load_back_tokens", "prefetched_tokens", "kv_offload_load", "external_prefix_cache_hits",
          "simple_kv_offload_load")  # fmt: skip


@dataclass(frozen=True)
class Conclusion:
    """What is known of one question."""

    question: str  # its name
    answer: str  # a sentence; why it is undecidable where it is
    value: int | str | None = None  # for programs: tokens, or a word; None if undecidable
    level: str = "note"  # ``good``, ``note``, ``bad`` for a fault, ``undecided``
    advice: str = ""  # the setting to change


@dataclass
class Known:
    """What later experiments build on."""

    hitting: int = 0  # tokens of a prompt that hits when it is sent again
    step: int = 0  # tokens by which hits grow; 0 while it is not known
    smallest: int = 0  # tokens of the shortest prompt that hits when it is sent again
    lost: int = 0  # tokens that a hit gives up in addition to a prompt's last
    why: str = ""  # why nothing can be built on it

    def whole(self, tokens: int) -> int:
        """Tokens hit of a common prefix, if only whole blocks count."""
        return max(0, tokens - self.lost) // self.step * self.step


Experiment = Callable[[Questioner, Known], Iterator[Conclusion]]


def undecided(question: str, why: str) -> Conclusion:
    """A question that cannot be answered."""
    return Conclusion(question, why, level="undecided")


def again(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """The same prompt twice, and again: whether it hits, each time, and how that is known."""
    cold, warm = _first_hit(q, (FIRST_TOKENS, 16_384, LONGEST_TOKENS))
    if warm.cached_tokens is None:
        known.why = (
            "the server does not report cached_tokens: give vLLM --enable-prompt-tokens-details, "
            "SGLang --enable-cache-report"
        )
        yield undecided("hits", known.why)
        return
    prompt = q.draw(warm.prompt_tokens if warm.cached_tokens else SHORT_TOKENS)
    fresh, hits = cold.cached_tokens or 0, [warm.cached_tokens]
    with suppress(Spent):  # what is known already is worth saying
        fresh = max(fresh, q.hit(prompt))
        for _ in range(_REPEATS):
            hits = [*hits, q.hit(prompt)]
    if fresh:
        known.why = (
            f"a prompt that was never sent hits {fresh:,} tokens: the same --seed was asked "
            "before, or cached_tokens counts something else"
        )
        yield undecided("hits", known.why)
    elif min(hits) < hits[0] or (not hits[0] and any(hits)):
        known.why = (
            f"sent again and again a prompt hits {', '.join(f'{hit:,}' for hit in hits)} tokens: "
            "replicas behind one address, others' prompts, or a cache that loses at random"
        )
        yield replace(undecided("hits", known.why), advice="ask one replica that is idle")
    elif warm.cached_tokens:
        known.hitting, level, advice = warm.prompt_tokens, "good", ""
        said = f"a prompt of {warm.prompt_tokens:,} tokens that is sent again hits"
        said = f"{said} {warm.cached_tokens / warm.prompt_tokens:.1%}"
        if _is_little(warm):
            level = "note"
            if warm.prompt_tokens >= LONGEST_TOKENS:
                known.why, level, advice = said, "bad", _LITTLE
        yield Conclusion("hits", said, warm.cached_tokens, level, advice)
    else:
        known.why = "nothing hits"
        most = f"{warm.prompt_tokens:,} tokens{': the server drafts' if q.drafts else ''}"
        advice = (
            "leave --no-enable-prefix-caching and --disable-radix-cache out; with speculative "
            "decoding try without it, or a vLLM that has #44082"
        )
        said = f"0 % of a prompt hits that is sent again, up to {most}"
        yield Conclusion("hits", said, 0, "bad", advice)


_LITTLE = "not all that is computed is cached, or counted: try its manager with dsv4kv conform"


def _is_little(warm: Answer) -> bool:
    """Whether it hits less than half: with one whole block, of any size, it would hit more."""
    return warm.cached_tokens is not None and 2 * warm.cached_tokens < warm.prompt_tokens


def _overcounted(answer: Answer, most: int) -> Conclusion:
    cached, tokens = answer.cached_tokens, answer.prompt_tokens
    reports = f"of a prompt of {tokens:,} tokens the server reports {cached:,} as cached"
    advice = "its cached_tokens are wrong, and so are hit rates and bills that are made of them"
    if most == tokens:
        return Conclusion("hits", f"{reports}: more than there are", cached, "bad", advice)
    said = f"{reports}, and only {most:,} of them were ever sent"
    advice = f"{advice}; or it answers from other prompts' tokens: serve without prefix caching"
    return Conclusion("hits", said, cached, "bad", advice)


def _first_hit(q: Questioner, sizes: tuple[int, ...]) -> tuple[Answer, Answer]:
    pair = None
    for tokens in sizes:
        prompt = q.draw(tokens)
        try:
            pair = q.ask(prompt), q.ask(prompt)
        except Refused:
            if pair:
                break  # longer than the server takes
            if tokens == SHORT_TOKENS:
                raise
            return _first_hit(q, (SHORT_TOKENS,))
        if not _is_little(pair[1]):
            break
    assert pair
    return pair


def steps(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """The shortest prompt that hits when it is sent again, and by how much hits grow."""

    def hit(tokens: int) -> int:
        prompt = q.draw(tokens)
        q.ask(prompt)
        return q.hit(prompt)

    smallest = _first(1, known.hitting, lambda tokens: hit(tokens) > 0)
    said = f"prompts of {smallest:,} tokens and more hit"
    shortest = Conclusion("smallest prefix", said, smallest)
    first, longer = hit(smallest), 2 * smallest
    while hit(longer) <= first and longer < LONGEST_TOKENS:
        longer *= 2
    if hit(longer) <= first:
        known.why = f"prompts of up to {longer:,} tokens hit {first:,}, and never more"
        yield shortest
        yield Conclusion("step", known.why, first, "bad", _LITTLE)
        return
    larger = _first(smallest, longer, lambda tokens: hit(tokens) > first)
    step, lost = larger - smallest, smallest - 1 - first
    known.step, known.smallest, known.lost = step, smallest, lost
    expected = {smallest - 1: 0, smallest: first} | {
        n: known.whole(n - 1)
        for n in (larger - 1, larger, larger + step // 2, larger + 3 * step, larger + 5 * step - 1)
    }
    odd = [n for n, tokens in expected.items() if hit(n) != tokens]
    if odd:
        known.why, known.step = f"a prompt of {odd[0]:,} tokens does not hit as others do", 0
        if min(odd) > smallest:
            yield shortest
        yield undecided("step", known.why)
        return
    yield shortest
    yield Conclusion("step", f"hits grow by {step:,} tokens", step)
    said, advice = f"every hit loses {lost:,} tokens, {lost // step} of its blocks", ""
    if not lost:
        said = "a hit loses nothing but a prompt's last token"
    elif lost % step:
        said = f"a hit leaves {counted(lost, 'token')} more than a prompt's last, for drafts"
    else:
        advice = "MTP with a KV connector costs a block a hit in vLLM"
    yield Conclusion("drafts", said, lost, "note" if lost else "good", advice)


def edges(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Prompts that part one token before, at and behind the end of a block."""
    offsets = dict.fromkeys((-1, 0, 1, known.lost % known.step + 1))
    found: dict[int, list[bool]] = {offset: [] for offset in offsets}
    given_up = known.lost // known.step * known.step
    rest = known.lost + 1 + min(16, known.step // 2)  # sent again, it would hit up to the edge
    wholes = [n for n in EDGES if n % known.step == 0 and n >= known.smallest - 1]
    for edge in wholes or [known.smallest - 1 + known.step]:
        for offset, hits in found.items():
            common = q.draw(edge + offset)
            with suppress(Refused):  # longer than the server takes: shorter ones decide, too
                q.ask(common + q.draw(rest - offset, 0))
                hit = q.hit(common + q.draw(rest - offset, 1), len(common))
                hits.append(hit >= edge - given_up)
    behind = next((n for n, hits in found.items() if n >= 0 and hits and all(hits)), None)
    if any(found[-1]) or behind is None:
        yield undecided("next token", "prompts that part at the end of a block hit differently")
    elif behind == 0:
        yield Conclusion("next token", "a block is found whatever token follows it", 0, "good")
    else:
        tokens = "the token that follows it is" if behind == 1 else f"{behind} that follow it are"
        said = f"a block is found only where {tokens} the same"
        advice = "MTP's drafts ask for it; DSpark's, or none, would not"
        yield Conclusion("next token", said, behind, advice=advice)


_RETAIN = "vLLM: --prefix-cache-retention-interval 4096; SGLang: keep windows dense"


def branches(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Prompts that part in the middle of one that is cached."""
    rest = max(_FOREIGN_STEPS * known.step // 4, 600)
    hits: dict[int, int] = {}
    for common in INSIDE_TOKENS:
        start = q.draw(common)
        with suppress(Refused):  # longer than the server takes
            q.ask(start + q.draw(rest, 0))
            hits[common], parted = q.hit(start + q.draw(rest, 1), common), start
    if not hits:
        yield undecided("branches", "the server takes no prompts that are long enough")
    elif not any(hits.values()):
        times = [q.hit(parted + q.draw(rest, ending), len(parted)) for ending in (2, 3)]
        said = "a prompt that parts in the middle of another never hits"
        if any(times):
            nth = "third" if times[0] else "fourth"
            said = f"a prompt that parts in the middle of others hits from the {nth} on"
        yield Conclusion("branches", said, 0 if any(times) else "never", advice=_RETAIN)
    else:
        yield _inside(hits, known)


def _inside(hits: Mapping[int, int], known: Known) -> Conclusion:
    step, ends = known.step, (known.lost, known.lost + 1)
    if all(
        any(hit == max(0, n - lost) // step * step for lost in ends) for n, hit in hits.items()
    ):
        said = f"a prompt that parts anywhere hits: windows are kept every {step:,} tokens"
        return Conclusion("branches", said, step, "good")
    kept = {hit for hit in hits.values() if hit}
    if len(kept) == 1:
        said = f"inside a prompt hits end at {max(kept):,} tokens, and nowhere else that was tried"
        return Conclusion("branches", said, max(kept), advice=_RETAIN)
    for lost in (0, known.lost):
        interval = gcd(*(hit + lost for hit in kept))
        if all(hit == max(0, n // interval * interval - lost) for n, hit in hits.items()):
            said = f"inside a prompt hits end at multiples of {interval:,} tokens"
            return Conclusion("branches", said, interval)
    found_of = ", ".join(f"{hit:,} of {n:,}" for n, hit in hits.items())
    return undecided("branches", f"hits of common tokens follow no interval: {found_of}")


def growing(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """A conversation: each prompt is the last one and more."""
    prompt, short = q.draw(2 * known.smallest + known.step // 2), []
    q.ask(prompt)
    for _ in range(3):
        held, prompt = len(prompt), prompt + q.draw(known.step + 7)
        short.append(known.whole(held) - q.hit(prompt, held))
    if max(short) <= 0:
        yield Conclusion("growing", "a continued prompt hits all that was cached", 0, "good")
    else:
        said = f"a continued prompt hits {max(short):,} tokens less than were cached"
        yield Conclusion("growing", said, max(short))


def equality(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Whether an answer from the cache is a cold one, beyond what two cold ones differ by.

    Two cold answers to one prompt need a cache that does not know it, by a salt; else prompts that
    are too short to hit show how much answers differ.
    """
    noise, apart, lengths = list[float](), list[float](), set[int]()
    for number in range(_TRIALS):
        prompt = q.draw(known.smallest + 3 * known.step + 8)
        cold = q.ask(prompt, outputs=_OUTPUTS)
        warm = q.ask(prompt, outputs=_OUTPUTS)
        lengths |= {len(cold.likely), len(warm.likely)}
        if 0 in lengths or any(len(each) < 2 for each in (*cold.likely, *warm.likely)):
            others = "" if 0 in lengths else " of words that were not chosen"
            yield undecided("equality", f"the server returns no log-probabilities{others}")
            return
        if warm.cached_tokens:
            apart.append(distance(cold, warm))
        other = None
        with suppress(Refused):  # it knows no salt
            other = q.ask(prompt, outputs=_OUTPUTS, salt=f"probe {number} {prompt[:4]}")
        if other is None or other.cached_tokens:
            short = q.draw(known.smallest - 1)
            cold, other = (q.ask(short, outputs=_OUTPUTS) for _ in range(2))
        noise.append(distance(cold, other))
    if len(apart) < _TRIALS:
        yield undecided("equality", "prompts did not hit again and again")
        return
    most, off = max(noise), max(apart)  # the worst: a rare stale hit is wrong, too
    said = f"up to {off:.2g} nats from cold ones, which differ by up to {most:.2g}"
    if off <= _NOISE_FACTOR * most and (most > _MOST_NOISE_NATS or len(lengths) > 1):
        ends = f"answers have {min(lengths)} to {max(lengths)} tokens"
        differ = f"two cold answers differ by up to {most:.2g} nats"
        yield undecided("equality", differ if most > _MOST_NOISE_NATS else ends)
    elif off <= _NOISE_FACTOR * most:
        yield Conclusion("equality", f"answers from the cache are {said}", "equal", "good")
    elif off <= _NOISE_FACTOR * most + _ROUNDING_NATS:
        rounding = "no more than rounding makes of other shapes"
        yield Conclusion("equality", f"answers from the cache are {said}: {rounding}", "close")
    else:
        advice = "a stale window or state at a hit's end: serve without prefix caching until fixed"
        wrong = f"answers from the cache are WRONG: {said}"
        yield Conclusion("equality", wrong, "differs", "bad", advice)


def distance(one: Answer, other: Answer) -> float:
    """The most that log-probabilities of one's tokens differ, up to where the texts part; nats."""
    most = 0.0
    for word, mine, theirs in zip(one.words, one.likely, other.likely, strict=False):
        least = min(theirs.values(), default=_LEAST_LIKELY)
        most = max(most, abs(mine.get(word, _LEAST_LIKELY) - theirs.get(word, least)))
        if max(theirs, key=lambda each: theirs[each], default=word) != word:
            break
    return most


@dataclass
class _Trials:
    """Send a prompt, other prompts, and the first again, to see whether it is lost."""

    q: Questioner
    known: Known
    tokens: int  # what the prompt hits as long as it is whole
    low: int = 0  # the most steps of others that do not lose a prompt
    high: int | None = None  # the fewest that do; None while none did
    shrunk: int = 0  # the most that did not lose one at first, where they always do at last

    def lost(self, foreign_steps: int, sent: int = 1) -> bool:
        """``sent``: how often the prompt is, before."""
        q, lost, step = self.q, self.known.lost, self.known.step
        prompt = q.draw(self.tokens + lost + 1)
        for _ in range(sent):
            q.ask(prompt)
        whole, rest = divmod(foreign_steps, _FOREIGN_STEPS)
        for steps in [*[_FOREIGN_STEPS] * whole, *([rest] if rest else [])]:
            q.ask(q.draw(steps * step + 1 + lost % step))  # so that its last block is kept, too
        return q.ask(prompt).cached_tokens != self.tokens

    def search(self) -> str:
        """Find ``low`` and ``high``; why there are none, if so."""
        if any(self.lost(0) for _ in range(_NEAR)):
            return "a prompt is lost with nothing in between"
        reach = _FOREIGN_STEPS
        while not self.lost(reach):
            self.low, reach = reach, 2 * reach
        self.high = reach
        while self.high - self.low > 1:
            middle = (self.low + self.high) // 2
            if self.lost(middle):
                self.high = middle
            else:
                self.low = middle
        lost = self.lost(self.low)
        if (lost and self._shrinks()) or (not lost and self.lost(self.high)):
            return ""
        return "the same tokens in between lose a prompt once, and once they do not"

    def _shrinks(self) -> bool:
        """Whether what did not lose a prompt always does now, and fewer steps never do."""
        if not all(self.lost(self.low) for _ in range(_NEAR)):
            return False
        now = self.low // 2
        while now and self.lost(now):
            now //= 2
        self.shrunk, self.low = self.low, now
        return not any(self.lost(now) for _ in range(_NEAR))


def capacity(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """How many tokens of others come in between until a prompt no longer hits whole."""
    trials = _Trials(q, known, known.whole(known.smallest - 1 + known.lost + 3 * known.step))
    before, why = _moved(q, _STORES), ""
    try:
        known.why = trials.search()
        if known.why:
            return
        if _moved(q, _STORES) > before and not _loaded(q):
            trials.lost(trials.high or 0, sent=3)  # some tiers store what is asked for again
    except (Spent, Refused) as end:
        why = f"; {end}"
    held, most = (
        trials.tokens + (known.lost // known.step + steps) * known.step
        for steps in (trials.low, trials.shrunk)
    )
    if trials.high is None:
        said = f"more than {held:,} tokens are held before one is lost{why}"
        yield undecided("capacity", said)
    elif trials.shrunk:
        said = f"the pool SHRINKS: it held {most:,} tokens at first, and {held:,} or more at last"
        advice = "it loses blocks: restart the server, and try its manager with dsv4kv conform"
        yield Conclusion("capacity", said + why, held, "bad", advice)
    else:
        error = (trials.high - trials.low) * known.step
        said = f"{held:,} tokens (+ {error:,}) are held before a prompt is lost{why}"
        yield Conclusion("capacity", said, held)
    if loaded := _loaded(q):
        yield Conclusion("tier", f"a tier is read back: the server counts {loaded:,.0f}", "read")
    elif trials.high is None:
        yield undecided("tier", "nothing was lost that a tier could bring back")
    elif _moved(q, _STORES) > before:
        said = "a tier stores and is never read: prompts are lost while its store counters grow"
        advice = "look at the tier's lookups: keys, its window groups, the policy that prefetches"
        yield Conclusion("tier", said, "never read", "bad", advice)
    else:
        yield Conclusion("tier", "no tier brings back what the GPU has lost", "none")


def _moved(q: Questioner, words: tuple[str, ...]) -> float:
    return sum(value for key, value in q.counted.grown.items() if any(w in key for w in words))


def _loaded(q: Questioner) -> float:
    """What the server says came back from beyond the GPU; answers count tokens."""
    return q.restored or _moved(q, _LOADS)


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number for which something holds, where it does for ``high``, not for ``low``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Planned(NamedTuple):
    """An experiment, its questions, and the most tokens it sends (0 for the capacity)."""

    run: Experiment
    answers: tuple[str, ...]
    tokens: int


_PAIRS = 2 * FIRST_TOKENS
PLANNED: Mapping[str, Planned] = {
    "again": Planned(again, ("hits",), 2 * (FIRST_TOKENS + 16_384 + LONGEST_TOKENS)
                                       + (1 + _REPEATS) * LONGEST_TOKENS),
    "steps": Planned(steps, ("smallest prefix", "step", "drafts"), 22 * _PAIRS),
    "edges": Planned(edges, ("next token",), 6 * sum(EDGES) + 30 * 4_096),
    "branches": Planned(branches, ("branches",), 2 * sum(INSIDE_TOKENS) + 10 * 4_096),
    "growing": Planned(growing, ("growing",), 4 * _PAIRS),
    "equality": Planned(equality, ("equality",), 5 * _TRIALS * 2_048),
    "capacity": Planned(capacity, ("capacity", "tier"), 0),
}  # fmt: skip
"""All experiments, in order."""


@dataclass(frozen=True)
class Examination:
    """What a server's answers show."""

    conclusions: list[Conclusion]  # by question
    died: str = ""  # why the server could not be asked to the end; empty if it could
    interrupted: bool = False  # whether Ctrl-C ended it


FIXED_TOKENS = sum(planned.tokens for planned in PLANNED.values())
"""The most tokens asked before the capacity is looked for, with blocks of up to 1,024."""


def examine(q: Questioner, report: Callable[[str], None] = lambda _: None) -> Examination:
    """Run all experiments; whatever ends one, what was learned before is kept."""
    known, conclusions = Known(), list[Conclusion]()
    died, interrupted = "", ""
    for name, planned in PLANNED.items():
        why = interrupted or died or known.why
        if not why:
            report(name)
            try:
                conclusions.extend(planned.run(q, known))
            except (Unreachable, ConfigError) as error:
                died = why = str(error)
            except KeyboardInterrupt:
                interrupted = why = "interrupted"
            except (Spent, Refused) as error:
                why = str(error)
                known.why = "" if known.step else why
        if q.overcounted and known.why != (fault := _overcounted(*q.overcounted)).answer:
            void = {"hits", *planned.answers}  # what was concluded from such hits
            conclusions = [fault, *(each for each in conclusions if each.question not in void)]
            known.why = fault.answer
        answered = {each.question for each in conclusions}
        missing = [question for question in planned.answers if question not in answered]
        conclusions.extend(undecided(question, why or known.why) for question in missing)
    return Examination(conclusions, died, bool(interrupted))
