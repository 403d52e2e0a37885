"""Run random sequences against an engine's manager and keep the shortest that fail.

An operation is its name and numbers, as a driver in ``dsv4kv/diagnose/conform/driven`` does it:

* ``admit``: a request by number, its pages of 256 tokens (equal numbers, equal tokens; 2n + 1
  differs from 2n in its last token), tokens of its prompt and of its answer.
* ``step``: schedule one step and take a result; the number of accepted drafts.
* ``finish``: take the result of a step that is still under way.
* ``abort``: a request. ``reset``: the prefix cache. ``preempt``: all that run.
* ``serve``: one request from admission to end, and the tokens it must hit.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from io import TextIOWrapper
from math import ceil
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

from dsv4kv.diagnose.conform.driven import PAGE
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import RULES, find_engine
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.errors import PeerUnavailable
from dsv4kv.files import Unparsable, parse_json
from dsv4kv.model.plan import choose_formats
from dsv4kv.model.presets import load_model
from dsv4kv.processes import Child, find_program
from dsv4kv.replay.rules import Pool, run_rule
from dsv4kv.traces.paths import collect_paths
from dsv4kv.traces.request import Request

Prompt = tuple[int, list[int]]
Operation = tuple[Any, ...]


@dataclass(frozen=True)
class Sequence:
    """What is asked of a manager."""

    settings: dict[str, Any]  # of its pools and its scheduler
    operations: tuple[Operation, ...]  # one after the other, on an empty cache


def draw_prompts(
    draw: random.Random, *, count: int, longest: int, page: int = PAGE
) -> list[Prompt]:
    """Prompts that begin with a part of an earlier one, mostly, and go on in their own way."""
    prompts: list[Prompt] = []
    fresh = 1
    for _ in range(count):
        base = draw.choice(prompts)[1] if prompts and draw.random() < 0.75 else []
        kept = base[: draw.randint(0, len(base))]
        own = draw.randint(0 if kept else 1, max(1, longest - len(kept)))
        pages = [*kept, *range(fresh, fresh + own)]
        fresh += own
        spare = 0 if draw.random() < 0.4 else draw.randint(1, page - 1)
        if spare:  # a partial page is another one than the whole page it might become
            pages[-1], fresh = fresh, fresh + 1
        prompts.append((len(pages) * page - spare, pages))
    return prompts


def draw_operations(
    draw: random.Random, prompts: list[Prompt], count: int, drafts: int
) -> Iterator[Operation]:
    """As many operations; prompts are admitted in order, some of them again."""
    admitted = 0
    for _ in range(count):
        kind = draw.random()
        if kind < 0.15 or not admitted:
            again = admitted and draw.random() < 0.3
            prompt = draw.randrange(admitted) if again else admitted
            tokens, pages = prompts[prompt % len(prompts)]
            yield "admit", admitted, pages, tokens, draw.choice([1, 2, 5, 20])
            admitted += 1
        elif kind < 0.85:
            yield "step", draw.randint(0, drafts)
        elif kind < 0.92:
            yield "finish", draw.randint(0, drafts)
        elif kind < 0.98:
            yield "abort", draw.randrange(admitted)
        else:
            yield (draw.choice(["reset", "preempt"]),)


def shrink(
    sequence: Sequence, broken: Callable[[Sequence], bool], patience: int = 400
) -> Sequence:
    """The shortest sequence that is found to be still broken, of ``patience`` that are tried.

    Chunks are removed, first half of the operations, then smaller ones (ddmin).
    """
    kept, tried = sequence.operations, 0
    size = max(1, len(kept) // 2)
    while size:
        start, before = 0, len(kept)
        while start < len(kept):
            shorter = kept[:start] + kept[start + size :]
            tried += bool(shorter)
            if shorter and tried <= patience and broken(replace(sequence, operations=shorter)):
                kept = shorter
            else:
                start += size
        size = size if len(kept) < before and size == 1 else size // 2
    return replace(sequence, operations=kept)


Traits = Mapping[str, bool]  # variants of the hit rules that an engine's version has
_MODEL = "v4-flash"
_LENGTH, _PROMPTS = 200, 16
_SERVED = 4  # of so many sequences one has the hits of prompts one after the other
_ROOMY = 8000  # blocks in which nothing is evicted
_RETENTION = {
    rule.flags["retention"]: name for name, rule in RULES.items() if "retention" in rule.flags
}


def draw_vllm(draw: random.Random, traits: Traits) -> Sequence:
    """A sequence for vLLM: a pool of at least what it demands at its start."""
    served, newest = draw.random() < 1 / _SERVED, traits.get("lookahead")
    chunk, longest, ahead = draw.choice([256, 512, 1024]), draw.choice([3, 6]), draw.random() < 0.5
    context = longest * PAGE + 64
    room = least_blocks(context, (1 + ahead) * chunk) + draw.choice([0, 4, 20, 60, 200, 600])
    speculation = draw.choice([*SPECULATIONS] if newest else ["none", "mtp+connector"])
    retention = draw.choice([*_RETENTION]) if traits.get("retention") else None
    # The rules know evictions of the newest version's steps, one at a time and without the blocks
    # that drafts take beyond a prompt.
    evicts = newest and not ahead and speculation == "none"
    settings = {
        "rule": _RETENTION[retention],
        "blocks": _ROOMY if served and not evicts else room,
        "context": context,
        "chunk_tokens": chunk,
        "running": draw.choice([2, 4, 8]),
        "ahead": ahead,
        "retention": retention,
        "speculation": speculation,
        "draft_tokens": draw.choice([1, 3]),
    }
    return _operate(draw, settings, longest, served=served)


def draw_sglang(draw: random.Random, traits: Traits) -> Sequence:
    """A sequence for SGLang: pages of context, and of windows for all that run and a chunk."""
    served, longest = draw.random() < 1 / _SERVED, draw.choice([3, 6])
    chunk, running = draw.choice([1, 2, 4]), draw.choice([2, 4, 8])
    pages = 2 * (longest + 2) + draw.choice([0, 3, 10, 40])
    windows = min(pages, 2 * running + chunk + draw.choice([1, 3, 10, 40]))
    dense = draw.random() < 0.5
    if served:  # of older versions the rules know what a roomy pool hits that keeps all windows
        spare = draw.choice([0, 1, 3, 10]) if traits.get("newest") else _ROOMY // 10
        windows, dense = longest + spare, dense or not traits.get("newest")
        pages = 10 * windows  # the share that it has by default
    settings: dict[str, Any] = {
        "rule": "sglang-v4:dense" if dense else "sglang-v4:tail",
        "blocks": pages,
        "windows": windows,
        "context": (longest + 2) * PAGE,
        "chunk_tokens": chunk * PAGE,
        "running": running,
        "speculation": draw.choice(["none", "mtp"]),
    }
    return _operate(draw, settings, longest, served=served)


DRAWN = {"vllm": draw_vllm, "sglang": draw_sglang}  # how sequences are drawn, by engine


def _operate(
    draw: random.Random, settings: dict[str, Any], longest: int, *, served: bool
) -> Sequence:
    drawn = draw_prompts(draw, count=_PROMPTS, longest=longest)
    # Equal pages behind different beginnings are different blocks. Pages that differ late are not
    # served: where a draft's key has the first tokens of the next page, the rules take the page.
    naming, named = random.Random(f"{drawn}"), dict[int, int]()
    few = naming.choice([10, 2000])
    for page in (page for _, pages in drawn for page in pages):
        named.setdefault(page, naming.randrange(0, few, 1 + served))
    prompts = [(n, [named[page] for page in pages]) for n, pages in drawn if len(pages) <= longest]
    if served:
        serve = [("serve", n, pages, tokens, 0) for n, (tokens, pages) in enumerate(prompts)]
        return expect(Sequence(settings, tuple(serve)))
    operations = draw_operations(draw, prompts, _LENGTH, drafts=3)
    return Sequence(settings, tuple(operations))


def expect(sequence: Sequence) -> Sequence:
    """The same with what the rule says of every prompt that is served alone."""
    served = [operation for operation in sequence.operations if operation[0] == "serve"]
    if not served:
        return sequence
    settings, known = sequence.settings, dict[tuple[int, ...], int]()
    asked = list[Request]()
    for number, (_, _, pages, tokens, _) in enumerate(served):
        starts = (tuple(pages[: n + 1]) for n in range(len(pages)))
        ids = tuple(known.setdefault(start, len(known)) for start in starts)
        asked.append(Request(float(number), tokens, 1, ids, PAGE))
    pool = Pool(
        collect_paths(asked),
        settings["blocks"] * PAGE,
        PAGE,
        load_model(_MODEL),
        settings["chunk_tokens"],
        SPECULATIONS[settings["speculation"]],
        windows=settings.get("windows"),
    )
    hits = run_rule(settings["rule"], pool).resumed_tokens.tolist()
    operations = [
        ("serve", n, pages, tokens, hit)
        for n, ((_, _, pages, tokens, _), hit) in enumerate(zip(served, hits, strict=True))
    ]
    return replace(sequence, operations=tuple(operations))


@cache
def least_blocks(context: int, in_flight: int) -> int:
    """Blocks without which vLLM does not start: of one request as long as there may be."""
    model, engine = load_model(_MODEL), find_engine(RULES[_RETENTION[0]].engine)
    deployment = Deployment(model, choose_formats(model, indexer="fp8"), context, in_flight)
    return ceil(engine.capacity(deployment, 1 << 40).units_per_request)


INVARIANTS = {
    "blocks": "no block is lost, or held by two that do not share it",
    "reads": "what a step reads is there in every family, of the request's own tokens",
    "hits": "a prompt hits what the rule says",
    "ends": "every request ends, and then the pool is empty",
    "calls": "the engine raises nothing",
}
"""What must hold after every operation, by name."""


# older Pythons, as engines have, know no -P: "" is the current folder
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), {folder!r}]; "
    "from driven import main; main()"
)
_MOST_ANSWER = 2**24  # characters


class _Undriven(PeerUnavailable):
    """Why an engine's Python does not answer."""


class Driven:
    """A driver that answers, of an engine with ``version`` and ``traits``."""

    def __init__(self, engine: str, given: IO[str], answers: IO[str]) -> None:
        """Wait until the engine is there; raises ``PeerUnavailable`` with why it is not."""
        self.engine, self._given, self._answers = engine, given, answers
        first = self._answer({"missing": str}, {"version": str, "traits": dict})
        if "missing" in first:
            raise _Undriven(first["missing"])
        self.version: str = first["version"]
        self.traits: dict[str, bool] = first["traits"]

    def ask(self, sequence: Sequence) -> dict[str, Any]:
        """``broken``: by invariant, how it broke and after how many operations; and ``done``."""
        with suppress(BrokenPipeError):  # then there is no answer either
            self._given.write(json.dumps(asdict(sequence)) + "\n")
            self._given.flush()
        return self._answer({"broken": dict, "done": int})

    def _answer(self, *kinds: Mapping[str, type]) -> dict[str, Any]:
        """A line with the fields of one of ``kinds``, each of its type."""
        line = self._answers.readline(_MOST_ANSWER)
        if not line:
            raise _Undriven("its Python has ended")
        with suppress(Unparsable):
            found = parse_json(line)
            for kind in kinds if isinstance(found, dict) else ():
                typed = all(isinstance(found.get(name), type_) for name, type_ in kind.items())
                if typed and ("broken" not in kind or _is_sound(found)):
                    return dict(found)
        raise _Undriven(f"its Python printed {line[:60]!r}, which no driver says")


def _is_sound(answer: dict[str, Any]) -> bool:
    """Whether operations were done, and what broke are invariants, each with how and when."""
    return answer["done"] > 0 and all(
        kind in INVARIANTS and isinstance(seen, list) and [*map(type, seen)] == [str, int]
        for kind, seen in answer["broken"].items()
    )


@contextmanager
def drive(engine: str, python: str | None = None, package: Path | None = None) -> Iterator[Driven]:
    """Start a driver, which ends with the block; ``python``: the engine's, None for this one.

    ``package``: the folder that the engine's package is in, where it is not installed. Raises
    ``PeerUnavailable`` where there is no such Python, or no such engine that it can import.
    """
    program = find_program(python or sys.executable)
    if program is None:
        raise PeerUnavailable(f"there is no Python at {python}: name the engine's own.")
    if package is not None and not (package / engine).is_dir():
        raise PeerUnavailable(
            f"{package} holds no folder {engine}: name the one that the package is in."
        )
    start = _START.format(folder=str(Path(__file__).parent))
    command = [program, "-c", start, engine, str(package.resolve()) if package else ""]
    child = Child(command, stdin=PIPE, stdout=PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    ask, hear = TextIOWrapper(child.stdin), TextIOWrapper(child.stdout, errors="replace")
    try:
        yield Driven(engine, ask, hear)
    except _Undriven as error:
        raise PeerUnavailable(
            f"{engine} cannot be checked with {program}: {error}. Take the Python of an "
            f"environment in which {engine} is installed (--python), or a folder with its "
            "package (--package)."
        ) from None
    finally:
        child.kill()
        with suppress(BrokenPipeError):
            ask.close()
        hear.close()


SHORT, STUBBORN = 20, 5
"""Operations that are short enough to read, and failures that are shrunk to get there."""
_ASKED_AGAIN = 3  # a fault that depends on the past may come back by chance


@dataclass(frozen=True)
class Failure:
    """An invariant that broke."""

    kind: str  # which of ``INVARIANTS``
    says: str  # what was seen: at the end of the shortest, or at first if it did not repeat
    sequence: Sequence  # the shortest that was found; the first if it did not repeat
    found_after: int  # operations that had been done when it was first seen
    repeats: bool  # whether the invariant breaks each time that the sequence is asked


@dataclass
class Verdict:
    """What came of a check."""

    operations: int = 0  # operations done
    sequences: int = 0  # sequences they were in
    failures: dict[str, Failure] = field(default_factory=dict)  # by invariant, the shortest
    broken: Counter[str] = field(default_factory=Counter)  # sequences, by invariant that broke


def conform(
    manager: Driven,
    operations: int,
    seed: int,
    show: Callable[[Verdict], None] = lambda _: None,
) -> Verdict:
    """Run sequences for a number of operations; the first that break an invariant are shrunk.

    Shrinking ends when one sequence per invariant is ``SHORT``; some cannot get that short.
    """
    verdict = Verdict()
    while verdict.operations < operations:
        source = random.Random(f"{seed} {verdict.sequences}")
        sequence = DRAWN[manager.engine](source, manager.traits)
        answer = manager.ask(sequence)
        for kind, (says, after) in answer["broken"].items():
            first = Failure(kind, says, sequence, verdict.operations + after, repeats=False)
            _note(verdict, manager, first)
        verdict.sequences += 1
        verdict.operations += answer["done"]
        show(verdict)
    return verdict


def _note(verdict: Verdict, manager: Driven, first: Failure) -> None:
    """Count a sequence that broke, and keep what can be made of it if it is the shortest."""
    verdict.broken[first.kind] += 1
    known = verdict.failures.get(first.kind)
    if known is None:
        verdict.failures[first.kind] = _shortest(manager, first)
    elif _rank(known) > (False, SHORT) and verdict.broken[first.kind] <= STUBBORN:
        found = replace(_shortest(manager, first), found_after=known.found_after)
        verdict.failures[first.kind] = min(known, found, key=_rank)


def _rank(failure: Failure) -> tuple[bool, int]:
    return not failure.repeats, len(failure.sequence.operations)


def _shortest(manager: Driven, first: Failure) -> Failure:
    """The failure by its shortest sequence; as it is where that does not break it each time."""

    def said(sequence: Sequence) -> str:
        says, _ = manager.ask(sequence)["broken"].get(first.kind, ("", 0))
        return str(says)

    def repeats(sequence: Sequence) -> bool:
        return all(said(sequence) for _ in range(_ASKED_AGAIN))

    if repeats(first.sequence):
        found = expect(shrink(first.sequence, lambda shorter: bool(said(expect(shorter)))))
        if repeats(found) and (says := said(found)):
            return replace(first, says=says, sequence=found, repeats=True)
    return first
