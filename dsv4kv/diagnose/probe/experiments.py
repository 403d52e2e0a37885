"""Experiments on a server's prefix cache: what to ask, and what follows from the answers.

Every one is a function of a questioner and of what those before it found. What does not follow
from the answers is reported as undecidable, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd
from statistics import median

from dsv4kv.diagnose.probe.capacity import FOREIGN_STEPS, capacity
from dsv4kv.diagnose.probe.conclusions import Conclusion, Experiment, Known, undecided
from dsv4kv.diagnose.probe.questioner import (
    Answer,
    Prompt,
    Questioner,
    Refused,
    Spent,
    Unreachable,
)
from dsv4kv.errors import ConfigError
from dsv4kv.units import counted

SHORT_TOKENS, FIRST_TOKENS, LONGEST_TOKENS = 1_000, 4_200, 40_000
EDGES = (64, 128, 256, 4_096, 16_384)
"""Sizes of blocks, retention intervals and chunks that engines have."""
INSIDE_TOKENS = (5_500, 6_500, 9_000, 13_900)
"""Where prompts part: no two intervals of a power of two leave the same hits at all of them."""
_TRIALS, _OUTPUTS = 6, 8
_FASTER = 0.6
_NOISE_FACTOR = 3.0
_ROUNDING_NATS = 0.25
"""Two steps of a logit between 16 and 32 in bf16: a hit is computed in other shapes than a cold
prompt, while two cold ones have the same and may be equal to the bit."""
_REPEATS = 4
"""How often a prompt is sent to see whether it hits each time."""
_LEAST_LIKELY = -20.0


def again(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """The same prompt twice, and again: whether it hits, each time, and how that is known."""
    cold, warm = _first_hit(q, (FIRST_TOKENS, 16_384, LONGEST_TOKENS))
    if warm.cached_tokens is None:
        yield from _by_time(q, known, [(cold, warm)])
        return
    said = f"a prompt of {warm.prompt_tokens:,} tokens that is sent again hits"
    fresh, *later = _hits_again(q, warm)
    fresh, hits = max(fresh, cold.cached_tokens or 0), [warm.cached_tokens, *later]
    if fresh > q.server.around:
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
        share = warm.cached_tokens / warm.prompt_tokens
        known.hitting = warm.prompt_tokens
        if fresh:
            known.why = f"of every prompt {fresh:,} tokens of a template hit"
        yield Conclusion("hits", f"{said} {share:.1%}", warm.cached_tokens, "good")
    else:
        yield _nothing_hits(q, known, warm.prompt_tokens)


def _first_hit(q: Questioner, sizes: tuple[int, ...]) -> tuple[Answer, Answer]:
    """A prompt's answers, cold and sent again: of the first size that hits, or the last tried."""
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
        if pair[1].cached_tokens != 0:
            break
    assert pair
    return pair


def _hits_again(q: Questioner, warm: Answer) -> list[int]:
    """What a prompt hits the first time that it is sent, and each time again."""
    prompt = q.draw(warm.prompt_tokens if warm.cached_tokens else SHORT_TOKENS)
    hits = [0]
    with suppress(Spent):  # what is known already is worth saying
        hits = [q.hit(prompt)]
        for _ in range(_REPEATS):
            hits.append(q.hit(prompt))
    return hits


def _nothing_hits(q: Questioner, known: Known, tokens: int) -> Conclusion:
    known.why = "nothing hits"
    drafts = ": the server drafts" if q.drafts else ""
    return Conclusion(
        "hits",
        f"0 % of a prompt hits that is sent again, up to {tokens:,} tokens{drafts}",
        0,
        "bad",
        "leave --no-enable-prefix-caching and --disable-radix-cache out; with speculative "
        "decoding try without it, or a vLLM that has #44082",
    )


def _by_time(
    q: Questioner, known: Known, pairs: list[tuple[Answer, Answer]]
) -> Iterator[Conclusion]:
    """Whether hits show in the time to the first token, where nothing reports them."""
    known.why = (
        "the server does not report cached_tokens, and its metrics count other prompts than "
        "these: it serves others, too, or --metrics is not its page"
        if q.others
        else "the server does not report cached_tokens: give vLLM --enable-prompt-tokens-details, "
        "SGLang --enable-cache-report, or name its --metrics"
    )
    for _ in range(_TRIALS - 1):
        prompt = q.draw(FIRST_TOKENS)
        pairs.append((q.ask(prompt), q.ask(prompt)))
    cold, warm = ([pair[side].ttft_s for pair in pairs] for side in (0, 1))
    ratio = median(warm) / max(median(cold), 1e-9)
    if ratio < _FASTER and max(warm) < min(cold):
        said = (
            f"the first token of a prompt that is sent again comes after {ratio:.0%} of the time"
        )
        yield Conclusion("hits", f"{said}; {known.why}", "by time", "good")
    else:
        yield undecided("hits", f"{known.why}; times to the first token do not differ enough")


def steps(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """The shortest prompt that hits when it is sent again, and by how much hits grow."""

    def hit(tokens: int) -> int:
        prompt = q.draw(tokens)
        q.ask(prompt)
        return q.hit(prompt)

    if q.splits:
        known.why = "the server takes only text, and counts other tokens than words of it"
        return
    smallest = _first(q.server.around + 1, known.hitting, lambda tokens: hit(tokens) > 0)
    first = hit(smallest)
    longer = 2 * smallest
    while hit(longer) <= first and longer < LONGEST_TOKENS:
        longer *= 2
    if hit(longer) <= first:
        known.why = f"prompts of up to {longer:,} tokens hit {first:,}, and never more"
        yield _smallest(smallest)
        return
    larger = _first(smallest, longer, lambda tokens: hit(tokens) > first)
    step = larger - smallest
    lost = smallest - 1 - first
    known.step, known.smallest, known.lost = step, smallest, lost
    expected = {smallest - 1: 0, smallest: first} | {
        n: known.whole(n - 1)
        for n in (larger - 1, larger, larger + step // 2, larger + 3 * step, larger + 5 * step - 1)
    }
    odd = [n for n, tokens in expected.items() if hit(n) != tokens]
    if odd:
        known.why, known.step = f"a prompt of {odd[0]:,} tokens does not hit as others do", 0
        if min(odd) > smallest:
            yield _smallest(smallest)
        yield undecided("step", known.why)
        return
    yield _smallest(smallest)
    yield Conclusion("step", f"hits grow by {step:,} tokens", step)
    if not lost:
        yield Conclusion("drafts", "a hit gives up nothing but a prompt's last token", 0, "good")
    elif lost % step == 0:
        said = f"every hit gives up {lost:,} tokens, {lost // step} of its blocks"
        yield Conclusion(
            "drafts", said, lost, advice="MTP with a KV connector costs a block a hit in vLLM"
        )
    else:
        said = f"a hit leaves {counted(lost, 'token')} more than a prompt's last, for drafts"
        yield Conclusion("drafts", said, lost)


def _smallest(tokens: int) -> Conclusion:
    return Conclusion("smallest prefix", f"prompts of {tokens:,} tokens and more hit", tokens)


def edges(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Prompts that part one token before, at and behind the end of a block."""
    if q.server.behind:
        yield undecided("next token", "a chat's template may end after a prompt's own tokens")
        return
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
                hits.append(q.hit(common + q.draw(rest - offset, 1)) >= edge - given_up)
    behind = next((n for n, hits in found.items() if n >= 0 and hits and all(hits)), None)
    if any(found[-1]) or behind is None:
        yield undecided("next token", "prompts that part at the end of a block hit differently")
    elif behind == 0:
        yield Conclusion("next token", "a block is found whatever token follows it", 0, "good")
    else:
        tokens = "the token that follows it is" if behind == 1 else f"{behind} that follow it are"
        said = f"a block is found only where {tokens} the same"
        yield Conclusion("next token", said, behind, advice=_LOOK_AHEAD)


_LOOK_AHEAD = "MTP's drafts ask for it; DSpark's, or none, would not"


def branches(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Prompts that part in the middle of one that is cached."""
    rest = max(FOREIGN_STEPS * known.step // 4, 600)
    hits: dict[int, int] = {}
    for common in INSIDE_TOKENS:
        start = q.draw(common)
        with suppress(Refused):  # longer than the server takes
            q.ask(start + q.draw(rest, 0))
            hits[common], parted = q.hit(start + q.draw(rest, 1)), start
    if not hits:
        yield undecided("branches", "the server takes no prompts that are long enough")
        return
    found = max(hits.values())
    if not found:
        times = [q.hit(parted + q.draw(rest, ending)) for ending in (2, 3)]
        when = next((n for n, tokens in enumerate(times, start=3) if tokens), None)
        if when is None:
            said = "a prompt that parts in the middle of another never hits"
            yield Conclusion("branches", said, "never", advice=_RETAIN)
            return
        said = f"a prompt that parts in the middle of others hits from the {_nth(when)} on"
        yield Conclusion("branches", said, 0, advice=_RETAIN)
        return
    dense = all(hit in _floors(n, known.step, known) for n, hit in hits.items())
    if dense:
        said = f"a prompt that parts anywhere hits: windows are kept every {known.step:,} tokens"
        yield Conclusion("branches", said, known.step, "good")
        return
    if len(kept := {hit for hit in hits.values() if hit}) == 1:
        said = f"inside a prompt hits end at {found:,} tokens, and nowhere else that was tried"
        yield Conclusion("branches", said, kept.pop(), advice=_RETAIN)
        return
    for lost in (0, known.lost):
        interval = gcd(*(hit + lost for hit in hits.values() if hit))
        if all(hit == max(0, n // interval * interval - lost) for n, hit in hits.items()):
            said = f"inside a prompt hits end at multiples of {interval:,} tokens"
            yield Conclusion("branches", said, interval)
            return
    ends = ", ".join(f"{hit:,} of {n:,}" for n, hit in hits.items())
    yield undecided("branches", f"hits of common tokens follow no interval: {ends}")


_RETAIN = "vLLM: --prefix-cache-retention-interval 4096; SGLang: keep windows dense"


def _floors(common: int, interval: int, known: Known) -> set[int]:
    """Hits of so many common tokens where a window is kept in every interval."""
    return {max(0, common - lost) // interval * interval for lost in (known.lost, known.lost + 1)}


def _nth(number: int) -> str:
    return {2: "second", 3: "third", 4: "fourth"}[number]


def growing(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """A conversation: each prompt is the last one and more."""
    prompt, short = q.draw(2 * known.smallest + known.step // 2), []
    q.ask(prompt)
    for _ in range(3):
        held, prompt = len(prompt), prompt + q.draw(known.step + 7)
        short.append(known.whole(held) - q.hit(prompt))
    if max(short) <= 0:
        yield Conclusion("growing", "a continued prompt hits all that was cached", 0, "good")
    else:
        said = f"a continued prompt hits {max(short):,} tokens less than were cached"
        yield Conclusion("growing", said, max(short))


def equality(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Whether an answer from the cache is a cold one, beyond what two cold ones differ by.

    Two cold answers to one prompt need a cache that does not know it: by a salt, or emptied; else
    prompts that are too short to hit show how much answers differ.
    """
    noise, apart = [], []
    for number in range(_TRIALS):
        prompt = q.draw(known.smallest + 3 * known.step + 8)
        cold = q.ask(prompt, outputs=_OUTPUTS)
        warm = q.ask(prompt, outputs=_OUTPUTS)
        if not cold.likely or not warm.likely:
            yield undecided("equality", "the server returns no log-probabilities")
            return
        if warm.cached_tokens:
            apart.append(distance(cold, warm))
        noise.append(distance(cold, other) if (other := _cold(q, known, prompt, number))
                     else _short_noise(q, known))  # fmt: skip
    if len(apart) < _TRIALS:
        yield undecided("equality", "prompts did not hit again and again")
        return
    most, off = max(noise), median(apart)
    said = f"{off:.2g} nats from cold ones, where cold ones differ by up to {most:.2g}"
    if off <= _NOISE_FACTOR * most:
        yield Conclusion("equality", f"answers from the cache are {said}", "equal", "good")
    elif off <= _NOISE_FACTOR * most + _ROUNDING_NATS:
        rounding = "no more than rounding makes of other shapes"
        yield Conclusion("equality", f"answers from the cache are {said}: {rounding}", "close")
    else:
        yield Conclusion(
            "equality",
            f"answers from the cache are WRONG: {said}",
            "differs",
            "bad",
            "a stale window or state at a hit's end: serve without prefix caching until fixed",
        )


def _cold(q: Questioner, known: Known, prompt: Prompt, number: int) -> Answer | None:
    """A second cold answer; None where there is no way to it."""
    salt = None if known.reset and q.server.reset() else f"probe {number} {prompt[:4]}"
    try:
        answer = q.ask(prompt, outputs=_OUTPUTS, salt=salt)
    except Refused:
        return None
    return None if answer.cached_tokens else answer


def _short_noise(q: Questioner, known: Known) -> float:
    prompt = q.draw(known.smallest - 1)
    return distance(*(q.ask(prompt, outputs=_OUTPUTS) for _ in range(2)))


def distance(one: Answer, other: Answer) -> float:
    """The most that log-probabilities of one's tokens differ, up to where the texts part; nats."""
    most = 0.0
    for word, mine, theirs in zip(one.words, one.likely, other.likely, strict=False):
        least = min(theirs.values(), default=_LEAST_LIKELY)
        most = max(most, abs(mine.get(word, _LEAST_LIKELY) - theirs.get(word, least)))
        if max(theirs, key=lambda each: theirs[each], default=word) != word:
            break
    return most


def waiting(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Whether a prompt is still there after a wait."""
    prompt = q.draw(known.smallest + known.step)
    q.ask(prompt)
    if known.wait_s >= q.left_s:
        raise Spent(f"the budget of {q.ledger.most_s:,.0f} s is used up")
    q.server.wait(known.wait_s)
    hit, full = q.hit(prompt), known.whole(len(prompt) - 1)
    said = f"after {known.wait_s:g} s a prompt hits {hit:,} of {full:,} tokens"
    yield Conclusion("waiting", said, hit, "good" if hit == full else "note")


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number for which something holds, where it does for ``high``, not for ``low``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Planned:
    """An experiment, what it answers, and the most tokens that it asks, without the capacity."""

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
    "waiting": Planned(waiting, ("waiting",), _PAIRS),
    "capacity": Planned(capacity, ("capacity", "tier"), 0),
}  # fmt: skip
"""All experiments, in order."""


@dataclass(frozen=True)
class Examination:
    """What a server's answers show.

    Attributes:
        conclusions: By question.
        died: Why the server could not be asked to the end; empty if it could.
        interrupted: Whether Ctrl-C ended it.
    """

    conclusions: list[Conclusion]
    died: str = ""
    interrupted: bool = False


def fixed_tokens() -> int:
    """The most tokens asked before the capacity is looked for, with blocks of up to 1,024."""
    return sum(planned.tokens for planned in PLANNED.values())


def examine(
    q: Questioner, known: Known, report: Callable[[str], None] = lambda _: None
) -> Examination:
    """Run all experiments; whatever ends one, what was learned before is kept."""
    conclusions: list[Conclusion] = []
    died, interrupted = "", ""
    for name, planned in PLANNED.items():
        if name == "waiting" and not known.wait_s:
            continue
        if not (interrupted or died or known.why):
            report(name)
        q.experiment, why = name, interrupted or died or known.why
        if not why:
            try:
                conclusions.extend(planned.run(q, known))
            except (Unreachable, ConfigError) as error:
                died = why = str(error)
            except KeyboardInterrupt:
                interrupted = why = "interrupted"
            except (Spent, Refused) as error:
                why = str(error)
                known.why = "" if known.step else why
        answered = {each.question for each in conclusions}
        missing = [question for question in planned.answers if question not in answered]
        conclusions.extend(undecided(question, why or known.why) for question in missing)
    return Examination(conclusions, died, bool(interrupted))
