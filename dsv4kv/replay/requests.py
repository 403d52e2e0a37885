"""A replay's requests: when they come, and the grid on which their prompts share blocks."""

from collections.abc import Callable, Sequence

from dsv4kv.config.replay import ArrivalSection
from dsv4kv.core.arrivals import Arrivals
from dsv4kv.core.served import Served
from dsv4kv.errors import ConfigError
from dsv4kv.traces.request import IdRuns, Request, signed

KeysOf = Callable[[Served], list[int]]  # the whole shared blocks of a request


def shared_tokens(trace_block_tokens: int, cache_block_tokens: int) -> int:
    """Tokens of a shared block: the larger of a trace's block and a cache's."""
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


def keys_on(tokens: int) -> KeysOf:
    """The keys of prompts in shared blocks of ``tokens``: the last id of every whole one."""

    def keys(served: Served) -> list[int]:
        ids = served.ids
        if not served.id_tokens or not len(ids):
            return []
        step = max(1, tokens // served.id_tokens)
        known = ids.array().tolist() if isinstance(ids, IdRuns) else signed(ids).tolist()
        return known[step - 1 :: step][: served.input_tokens // tokens]

    return keys


def begin_serving(
    number: int, request: Request, arrival_s: float, keys: KeysOf, longest_output: int | None
) -> Served:
    """A request as it comes; outputs are cut to ``longest_output`` tokens."""
    output, ids = request.output_tokens, request.prefix_hashes
    output = output if longest_output is None else min(output, longest_output)
    tokens, size = request.input_tokens, request.hash_block_tokens
    return Served(number, arrival_s, tokens, output, keys, ids, size)


def open_arrivals(
    requests: Sequence[Request], section: ArrivalSection, keys: KeysOf, client_s: float = 0.0
) -> Arrivals:
    """Requests as they come; closed ones ``client_s`` after the answer that they waited for."""
    longest, closed = section.max_output_tokens, section.arrivals == "closed"
    times_s = list[float]()
    if not closed:
        times_s = [(r.arrival_s - requests[0].arrival_s) / section.speed for r in requests]

    def begin(number: int, arrival_s: float) -> Served:
        return begin_serving(number, requests[number], arrival_s, keys, longest)

    return Arrivals(begin, len(requests), times_s, section.concurrency if closed else 0, client_s)
