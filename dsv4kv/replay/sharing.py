"""The grid on which prompts share blocks, and the keys of a prompt on it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.prefix.tree import NO_IDS, Ids
from dsv4kv.traces.request import Request
from dsv4kv.traces.runs import IdRuns, signed

KeysOf = Callable[[int, Request], Ids]
"""The whole shared blocks of a request, known by its place in the trace, as int64."""


def shared_tokens(trace_block_tokens: int, cache_block_tokens: int) -> int:
    """Tokens of a shared block: the larger of a trace's block and a cache's.

    Raises:
        ConfigError: Neither divides the other.
    """
    if not trace_block_tokens:
        return cache_block_tokens
    small, large = sorted((trace_block_tokens, cache_block_tokens))
    if large % small:
        raise ConfigError(
            f"cache.block_tokens is {cache_block_tokens} and an id of the trace covers "
            f"{trace_block_tokens} tokens: neither divides the other, so no whole block could "
            f"ever be found again; take a multiple of 128 that divides {trace_block_tokens} or "
            "is a multiple of it."
        )
    return large


def shared_keys(request: Request, tokens: int) -> Ids:
    """int64: the id behind every whole shared block of a prompt; an id stands for its history."""
    if not request.hash_block_tokens or not len(request.prefix_hashes):
        return NO_IDS
    whole = request.input_tokens // tokens
    step = max(1, tokens // request.hash_block_tokens)
    ids = request.prefix_hashes
    array = ids.array() if isinstance(ids, IdRuns) else np.array(signed(ids))
    return array[step - 1 :: step][:whole].copy()


def keys_in(paths: Sequence[Ids]) -> KeysOf:
    """The keys of prompts that are known as numbers of blocks."""
    return lambda number, _: paths[number]


def keys_on(tokens: int) -> KeysOf:
    """The keys of prompts on a grid of shared blocks of so many tokens."""
    return lambda _, request: shared_keys(request, tokens)


def check_order(requests: Sequence[Request]) -> None:
    """Refuse a trace whose clock runs backwards; raises ``TraceError``."""
    for number, (before, after) in enumerate(pairwise(requests), start=2):
        if after.arrival_s < before.arrival_s:
            raise TraceError(
                f"request {number:,} of the trace arrives at {after.arrival_s:g} s, the one "
                f"before it at {before.arrival_s:g} s: the clock runs backwards. Sort the trace "
                "by time, or leave its times aside with workload.arrivals=closed."
            )
