"""Random sequences of operations for an engine's manager, what they must answer, and the shortest.

An operation is its name and numbers, as a driver in ``dsv4kv/diagnose/conform/driven`` does it:

* ``admit``: a request by number, its pages of 256 tokens (equal numbers, equal tokens), tokens of
  its prompt and of its answer.
* ``step``: schedule one and take a result, in which so many drafts are accepted.
* ``finish``: take the result of a step that is still under way.
* ``abort``: a request. ``reset``: the prefix cache. ``preempt``: all that run.
* ``land``: one of the copies to and from host memory ends. ``empty``: both prefix caches.
* ``serve``: one request from its admission to its end, and what it must hit.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

PAGE = 256
_LANDED = 0.4  # of 1: up to there an operation is that a copy ends, where there is host memory
Prompt = tuple[int, list[int]]
Operation = tuple[Any, ...]


@dataclass(frozen=True)
class Sequence:
    """What is asked of a manager.

    Attributes:
        settings: Of its pools and its scheduler.
        operations: One after the other, on an empty cache.
    """

    settings: dict[str, Any]
    operations: tuple[Operation, ...]


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
    draw: random.Random, prompts: list[Prompt], count: int, drafts: int, *, host: bool = False
) -> Iterator[Operation]:
    """As many operations; prompts are admitted in order, some of them again.

    With ``host`` memory copies end, and in one sequence of eight it is emptied at any moment.
    """
    emptied = host and draw.random() < 1 / 8
    admitted = 0
    for _ in range(count):
        kind = draw.random()
        if kind < 0.15 or not admitted:
            again = admitted and draw.random() < 0.3
            prompt = draw.randrange(admitted) if again else admitted
            tokens, pages = prompts[prompt % len(prompts)]
            yield "admit", admitted, pages, tokens, draw.choice([1, 2, 5, 20])
            admitted += 1
        elif host and kind < _LANDED:
            yield "land", draw.randrange(8)
        elif kind < 0.85:
            yield "step", draw.randint(0, drafts)
        elif kind < 0.92:
            yield "finish", draw.randint(0, drafts)
        elif kind < 0.98:
            yield "abort", draw.randrange(admitted)
        else:
            yield (draw.choice(["reset", "preempt", *(["empty"] if emptied else [])]),)


def serve_prompts(prompts: list[Prompt], hits: list[int]) -> tuple[Operation, ...]:
    """Prompts one after the other, and what they hit."""
    pairs = enumerate(zip(prompts, hits, strict=True))
    return tuple(("serve", n, pages, tokens, hit) for n, ((tokens, pages), hit) in pairs)


def shrink(
    sequence: Sequence, broken: Callable[[Sequence], bool], patience: int = 400
) -> Sequence:
    """The shortest sequence that is found to be still broken, and then with the least numbers.

    Chunks are left out, of half of the operations, then smaller (ddmin). ``patience``: how often
    a shorter one is tried.
    """
    tried = 0

    def still(operations: tuple[Operation, ...]) -> bool:
        nonlocal tried
        tried += 1
        return tried <= patience and broken(replace(sequence, operations=operations))

    kept = sequence.operations
    size = max(1, len(kept) // 2)
    while size:
        start, before = 0, len(kept)
        while start < len(kept):
            shorter = kept[:start] + kept[start + size :]
            if shorter and still(shorter):
                kept = shorter
            else:
                start += size
        size = size if len(kept) < before and size == 1 else size // 2
    for place, operation in enumerate(kept):
        for simpler in _simpler(operation):
            if still((*kept[:place], simpler, *kept[place + 1 :])):
                kept = (*kept[:place], simpler, *kept[place + 1 :])
                break
    return replace(sequence, operations=kept)


def _simpler(operation: Operation) -> Iterator[Operation]:
    """The same operation with fewer tokens, the simplest first."""
    match operation:
        case "admit", number, pages, tokens, output if output > 1:
            yield "admit", number, pages, tokens, 1
            yield "admit", number, pages, tokens, 2
        case ("step" | "finish") as name, accepted if accepted:
            yield name, 0
