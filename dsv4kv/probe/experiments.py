"""Experiments on a server's prefix cache: what to ask, and what follows from the answers.

Every one is a function of a questioner and of what those before it found. What does not follow
from the answers is reported as undecidable, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import gcd
from statistics import median

from dsv4kv.probe.questioner import Answer, Prompt, Questioner, Refused, Spent, Unreachable
from dsv4kv.units import counted

FIRST_TOKENS, LONGEST_TOKENS = 4_200, 40_000
EDGES = (64, 128, 256, 4_096, 16_384)
"""Sizes of blocks, retention intervals and chunks that engines have."""
INSIDE_TOKENS = (5_500, 6_500, 9_000, 13_900)
"""Where prompts part: no two intervals of a power of two leave the same hits at all of them."""
FOREIGN_STEPS = 16
"""Blocks of a prompt that others' are pushed out with."""
_TRIALS, _OUTPUTS = 6, 8
_FASTER, _SLOWER = 0.6, 2.0
_NOISE_FACTOR, _NOISE_FLOOR = 3.0, 1e-3
_LEAST_LIKELY = -20.0


@dataclass(frozen=True)
class Conclusion:
    """What is known of one question.

    Attributes:
        question: Its name.
        answer: A sentence; why it is undecidable where it is.
        value: The same for programs: tokens, or a word; None where it is undecidable.
        level: ``good``, ``note``, ``bad`` for a fault, ``undecided``.
        advice: The setting to change.
    """

    question: str
    answer: str
    value: int | str | None = None
    level: str = "note"
    advice: str = ""


@dataclass
class Known:
    """What later experiments build on.

    Attributes:
        step: Tokens by which hits grow; 0 while it is not known.
        smallest: Tokens of the shortest prompt that hits when it is sent again.
        lost: Tokens that a hit gives up in addition to a prompt's last.
        reset: Whether the cache may be emptied.
        wait_s: How long to wait in the experiment that does.
        why: Why nothing can be built on it.
    """

    step: int = 0
    smallest: int = 0
    lost: int = 0
    reset: bool = False
    wait_s: float = 0.0
    why: str = ""

    def whole(self, tokens: int) -> int:
        """What of so many common tokens is hit where blocks are all that matters."""
        return max(0, tokens - self.lost) // self.step * self.step


Experiment = Callable[[Questioner, Known], Iterator[Conclusion]]


def again(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """The same prompt twice: whether anything hits, and how that is known."""
    for tokens in (FIRST_TOKENS, 16_384, LONGEST_TOKENS):
        prompt = q.draw(tokens)
        try:
            cold, warm = q.ask(prompt), q.ask(prompt)
        except Refused:
            if tokens == FIRST_TOKENS:
                raise
            break  # longer than the server takes
        if warm.cached_tokens is None:
            yield from _by_time(q, known, [(cold, warm)])
            return
        if warm.cached_tokens:
            share = warm.cached_tokens / warm.prompt_tokens
            said = f"a prompt of {warm.prompt_tokens:,} tokens that is sent again hits {share:.1%}"
            yield Conclusion("hits", said, warm.cached_tokens, "good")
            return
    known.why = "nothing hits"
    drafts = ": the server drafts" if q.drafts else ""
    yield Conclusion(
        "hits",
        f"0 % of a prompt hits that is sent again, up to {warm.prompt_tokens:,} tokens{drafts}",
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
        "the server does not report cached_tokens: give vLLM --enable-prompt-tokens-details, "
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
        yield _undecided("hits", f"{known.why}; times to the first token do not differ enough")


def steps(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """The shortest prompt that hits when it is sent again, and by how much hits grow."""

    def hit(tokens: int) -> int:
        prompt = q.draw(tokens)
        q.ask(prompt)
        return q.hit(prompt)

    if q.splits:
        known.why = "the server takes text alone, and counts other tokens than words of it"
        return
    upper = next(n for n in (FIRST_TOKENS, 16_384, LONGEST_TOKENS) if hit(n))
    smallest = _first(q.server.around + 2, upper, lambda tokens: hit(tokens) > 0)
    first = hit(smallest)
    longer = smallest
    while hit(longer) <= first:
        longer *= 2
    larger = _first(smallest, longer, lambda tokens: hit(tokens) > first)
    step = larger - smallest
    lost = smallest - 1 - first
    known.step, known.smallest, known.lost = step, smallest, lost
    odd = [n for n in (larger + step // 2, larger + 3 * step, larger + 5 * step - 1)
           if hit(n) != known.whole(n - 1)]  # fmt: skip
    yield Conclusion("smallest prefix", f"prompts of {smallest:,} tokens and more hit", smallest)
    if odd:
        known.why, known.step = f"a prompt of {odd[0]:,} tokens does not hit as others do", 0
        yield _undecided("step", known.why)
        return
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


def edges(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Prompts that part one token before, at and behind the end of a block."""
    if q.server.behind:
        yield _undecided("next token", "a chat's template may end behind a prompt's own tokens")
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
        yield _undecided("next token", "prompts that part at the end of a block hit differently")
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
        yield _undecided("branches", "the server takes no prompts that are long enough")
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
    yield _undecided("branches", f"hits of common tokens follow no interval: {ends}")


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
        yield Conclusion("growing", "a prompt that goes on hits all that was there", 0, "good")
    else:
        said = f"a prompt that goes on hits {max(short):,} tokens less than were there"
        yield Conclusion("growing", said, max(short))


def equality(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """Whether an answer from the cache is a cold one, beyond what two cold ones differ by.

    Two cold answers to one prompt need a cache that does not know it: by a salt, or emptied; else
    prompts that are too short to hit tell how much answers differ.
    """
    noise, apart = [], []
    for number in range(_TRIALS):
        prompt = q.draw(known.smallest + 3 * known.step + 8)
        cold = q.ask(prompt, outputs=_OUTPUTS)
        warm = q.ask(prompt, outputs=_OUTPUTS)
        if not cold.likely or not warm.likely:
            yield _undecided("equality", "the server returns no log-probabilities")
            return
        if warm.cached_tokens:
            apart.append(distance(cold, warm))
        noise.append(distance(cold, other) if (other := _cold(q, known, prompt, number))
                     else _short_noise(q, known))  # fmt: skip
    if len(apart) < _TRIALS:
        yield _undecided("equality", "prompts did not hit again and again")
        return
    most = max(noise)
    said = f"{median(apart):.2g} nats from cold ones, where cold ones differ by up to {most:.2g}"
    if median(apart) > _NOISE_FACTOR * most + _NOISE_FLOOR:
        yield Conclusion(
            "equality",
            f"answers from the cache are WRONG: {said}",
            "differs",
            "bad",
            "a stale window or state behind a hit: serve without prefix caching until mended",
        )
    else:
        yield Conclusion("equality", f"answers from the cache are {said}", "equal", "good")


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


def capacity(q: Questioner, known: Known) -> Iterator[Conclusion]:
    """How many tokens of others come in between until a prompt no longer hits whole."""
    canary = known.whole(known.smallest - 1 + known.lost + 3 * known.step)
    more = 1 + known.lost % known.step
    stored = _moved(q, _STORES)
    near: list[float] = []
    far: list[float] = []

    def lost(foreign_steps: int) -> bool:
        prompt = q.draw(canary + known.lost + 1)
        q.ask(prompt)
        size = FOREIGN_STEPS * known.step
        whole, rest = divmod(foreign_steps * known.step, size)
        for tokens in [*[size] * whole, *([rest] if rest else [])]:
            q.ask(q.draw(tokens + more))  # so that its last block is kept, too
        answer = q.ask(prompt)
        hit = answer.cached_tokens == canary
        (near if foreign_steps <= FOREIGN_STEPS else far).extend([answer.ttft_s] * hit)
        return not hit

    low, high, why = 0, None, ""
    try:
        reach = FOREIGN_STEPS
        while not lost(reach):
            low, reach = reach, 2 * reach
        high = reach
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if lost(middle) else (middle, high)
    except (Spent, Refused) as end:
        why = str(end)
    held = canary + (known.lost // known.step + low) * known.step
    if high is None:
        said = f"more than {held:,} tokens are held before one is lost; {why}"
        yield _undecided("capacity", said)
    else:
        error = (high - low) * known.step
        said = f"{held:,} tokens (+ {error:,}) are held before a prompt is lost"
        yield Conclusion("capacity", f"{said}{'; ' * bool(why)}{why}", held)
    yield from _tiers(q, known, stored, (near, far), is_lost=high is not None)


_STORES = ("backuped_tokens", "kv_offload_store", "kv_offload_bytes", "simple_kv_offload_store",
           "kv_offload_total_bytes")  # fmt: skip
_LOADS = ("load_back_tokens", "prefetched_tokens", "kv_offload_load", "external_prefix_cache_hits",
          "simple_kv_offload_load")  # fmt: skip


def _moved(q: Questioner, words: tuple[str, ...]) -> float:
    return sum(value for key, value in q.counted.grown.items() if any(w in key for w in words))


def _tiers(
    q: Questioner,
    known: Known,
    stored: float,
    times: tuple[list[float], list[float]],
    *,
    is_lost: bool,
) -> Iterator[Conclusion]:
    """Whether anything comes back from beyond the GPU's memory."""
    near, far = times
    if loaded := q.restored or _moved(q, _LOADS):
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
        said = f"hits behind others' tokens come {median(far) / median(near):.1f} times later"
        yield Conclusion("tier", f"a slower tier is read back: {said}", "read")
    elif is_lost:
        yield Conclusion("tier", "no tier brings back what the GPU has lost", "none")
    else:
        yield _undecided("tier", "nothing was lost that a tier could bring back")


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number for which something holds, where it does for ``high``, not for ``low``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _undecided(question: str, why: str) -> Conclusion:
    return Conclusion(question, why, level="undecided")


@dataclass(frozen=True)
class Planned:
    """An experiment, what it answers, and the most tokens that it asks, without the capacity."""

    run: Experiment
    answers: tuple[str, ...]
    tokens: int


_PAIRS = 2 * FIRST_TOKENS
PLANNED: Mapping[str, Planned] = {
    "again": Planned(again, ("hits",), max(2 * (FIRST_TOKENS + 16_384 + LONGEST_TOKENS),
                                           _TRIALS * _PAIRS)),
    "steps": Planned(steps, ("smallest prefix", "step", "drafts"), 20 * _PAIRS),
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
    """

    conclusions: list[Conclusion]
    died: str = ""


def fixed_tokens() -> int:
    """The most tokens asked before the capacity is looked for, with blocks of up to 1,024."""
    return sum(planned.tokens for planned in PLANNED.values())


def examine(
    q: Questioner, known: Known, tell: Callable[[str], None] = lambda _: None
) -> Examination:
    """Run all experiments; whatever ends one, what was learned before is kept."""
    conclusions: list[Conclusion] = []
    died = ""
    for name, planned in PLANNED.items():
        if name == "waiting" and not known.wait_s:
            continue
        tell(name)
        q.experiment, why = name, died or known.why
        if not why:
            try:
                conclusions.extend(planned.run(q, known))
            except Unreachable as error:
                died = why = str(error)
            except (Spent, Refused) as error:
                why = str(error)
                known.why = "" if known.step else why
        answered = {each.question for each in conclusions}
        missing = [question for question in planned.answers if question not in answered]
        if missing and not why and not known.step:
            why = known.why
        conclusions.extend(_undecided(question, why) for question in missing)
    return Examination(conclusions, died)
