"""Synthetic requests: lengths, arrivals and shared prefixes drawn from stated distributions.

A chat service in miniature: conversations over one system prompt, each turn extending the last.
The shipped ``builtin:chat`` is ``chat_trace(CONVERSATIONS, SEED)``, written by

    dsv4kv trace synth configs/traces/chat.jsonl.gz --shape chat --conversations 12 --seed 0
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from dsv4kv.config.bench import Lengths, Synthetic
from dsv4kv.traces.request import Request


def synthesize(settings: Synthetic, seed: int) -> Iterator[Request]:
    """Yield ``settings.requests`` requests; the same settings and seed give the same ones.

    Inputs, outputs, arrivals and prefixes have a random stream each: changing one of them leaves
    the others, and more requests begin with the same ones.
    """
    inputs, outputs, arrivals, walks = np.random.default_rng(seed).spawn(4)
    ids, shared = itertools.count(), dict[tuple[tuple[int, ...], int], int]()
    arrival_s = 0.0
    for _ in range(settings.requests):
        if settings.arrival_rate is not None:
            arrival_s += arrivals.exponential(1 / settings.arrival_rate)
        input_tokens, walk = draw_length(settings.input, inputs), ()
        if settings.prefix_branches:
            path = walks.integers(settings.prefix_branches, size=settings.prefix_depth)
            walk = tuple(path.tolist())
        yield Request(
            arrival_s=round(arrival_s, 6),
            input_tokens=input_tokens,
            output_tokens=draw_length(settings.output, outputs),
            prefix_hashes=tuple(_name_blocks(settings, input_tokens, walk, shared, ids)),
            hash_block_tokens=settings.hash_block_tokens,
        )


def _name_blocks(
    settings: Synthetic,
    input_tokens: int,
    walk: tuple[int, ...],
    shared: dict[tuple[tuple[int, ...], int], int],
    ids: Iterator[int],
) -> Iterator[int]:
    """Yield one id per block of a prompt, the last perhaps partial.

    A prompt begins with a random walk down a tree of shared text, whose levels add
    ``prefix_tokens`` tokens each; a shorter prompt cuts it, and what follows is its own. A block
    inside the walk is known by the path to its last token and by where it ends: equal ids mean
    equal tokens and equal history.
    """
    size = settings.hash_block_tokens
    for end in (min(start + size, input_tokens) for start in range(0, input_tokens, size)):
        levels = -(-end // settings.prefix_tokens)
        if levels > len(walk):
            yield next(ids)
            continue
        key = (walk[:levels], end)
        if key not in shared:
            shared[key] = next(ids)
        yield shared[key]


def draw_length(lengths: Lengths, rng: np.random.Generator) -> int:
    """Draw a token count; ``mean`` is the mean before the cut to low..high."""
    match lengths.kind:
        case "fixed":
            return lengths.mean
        case "uniform":
            return int(rng.integers(lengths.low, lengths.high, endpoint=True))
        case "lognormal":
            mu = math.log(lengths.mean) - lengths.sigma**2 / 2
            drawn = rng.lognormal(mu, lengths.sigma)
            return round(min(max(drawn, lengths.low), lengths.high))


CONVERSATIONS = 12
SEED = 0

BLOCK_TOKENS = 64  # divides every cache block, so that a hit never depends on the trace's grid
SYSTEM_TOKENS = 3 * BLOCK_TOKENS
MAX_PROMPT_TOKENS = 6000

# Most messages are short, some carry a pasted document; answers end at 300 tokens, to keep the
# shipped trace quick to replay.
_MESSAGE = Lengths(mean=260, sigma=1.2, low=8, high=4000)
_ANSWER = Lengths(mean=85, sigma=0.7, low=10, high=300)
_MEAN_TURNS = 3.5
_START_GAP_S = 12.0
_THINK_S = 20.0
_SECONDS_PER_TOKEN = 0.02


def chat_trace(conversations: int, seed: int) -> list[Request]:
    """Return the turns of all conversations in order of arrival; the same seed gives the same.

    A conversation's prompt is the system prompt, all earlier messages and answers, and a new
    message. Full blocks keep their id from turn to turn; a partial last block never recurs.
    """
    rng = np.random.default_rng(seed)
    ids = itertools.count()
    system = list(itertools.islice(ids, SYSTEM_TOKENS // BLOCK_TOKENS))
    requests: list[Request] = []
    start_s = 0.0
    for _ in range(conversations):
        requests += _converse(rng, ids, list(system), start_s)
        start_s += rng.exponential(_START_GAP_S)
    return sorted(requests, key=lambda request: request.arrival_s)


def _converse(
    rng: np.random.Generator, ids: Iterator[int], blocks: list[int], arrival_s: float
) -> Iterator[Request]:
    input_tokens = SYSTEM_TOKENS
    for _ in range(rng.geometric(1 / _MEAN_TURNS)):
        input_tokens += draw_length(_MESSAGE, rng)
        if input_tokens > MAX_PROMPT_TOKENS:
            return
        output_tokens = draw_length(_ANSWER, rng)
        full, partial = divmod(input_tokens, BLOCK_TOKENS)
        blocks += itertools.islice(ids, full - len(blocks))
        last = [next(ids)] if partial else []
        yield Request(
            # milliseconds: the last digits of an exponential differ between C libraries
            arrival_s=round(arrival_s, 3),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            prefix_hashes=(*blocks, *last),
            hash_block_tokens=BLOCK_TOKENS,
        )
        input_tokens += output_tokens
        arrival_s += output_tokens * _SECONDS_PER_TOKEN + rng.exponential(_THINK_S)
