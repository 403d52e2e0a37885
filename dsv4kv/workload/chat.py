"""A chat service in miniature: conversations over one system prompt, each turn extending the last.

The shipped ``builtin:chat`` is ``chat_trace(CONVERSATIONS, SEED)``, written by

    dsv4kv trace synth configs/traces/chat.jsonl.gz --shape chat --conversations 12 --seed 0
"""

import itertools
from collections.abc import Iterator

import numpy as np

from dsv4kv.config.bench import Lengths
from dsv4kv.workload.request import Request
from dsv4kv.workload.synth import draw_length

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
    """Yield the turns of one conversation; it ends before its prompt would grow too long."""
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
