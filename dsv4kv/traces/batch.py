"""Requests of a trace as columns, many at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from dsv4kv.prefix.paths import Ints
from dsv4kv.traces.records import MAX_TOKENS, MOST_S, ODD_ID
from dsv4kv.traces.request import Request
from dsv4kv.traces.runs import RunBuffer

BATCH_REQUESTS = 256  # few, for their prompts may be long


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that follow each other.

    Attributes:
        arrival_s: float64[requests].
        input_tokens: int64[requests].
        output_tokens: int64[requests].
        hash_block_tokens: Tokens that one id stands for; 0 where no request has ids.
        request: int64[runs]: whose the run of ids is, from 0; in the order of the prompts.
        start: int64[runs]: its first id.
        count: int64[runs]: its length; the run is as long as can be.
    """

    arrival_s: NDArray[np.float64]
    input_tokens: Ints
    output_tokens: Ints
    hash_block_tokens: int
    request: Ints
    start: Ints
    count: Ints

    def follows(self, before_s: float) -> bool:
        """Whether nothing arrives before ``before_s`` or before the request above it."""
        return bool(before_s <= self.arrival_s[0] and (np.diff(self.arrival_s) >= 0).all())

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        """The same requests, at least one, as columns."""
        runs = RunBuffer()
        for number, request in enumerate(requests):
            runs.add(number, request.prefix_hashes)
        return cls(
            np.array([request.arrival_s for request in requests], np.float64),
            np.array([request.input_tokens for request in requests], np.int64),
            np.array([request.output_tokens for request in requests], np.int64),
            next((size for request in requests if (size := request.hash_block_tokens)), 0),
            *runs.pop(),
        )


def batches_of(requests: Iterable[Request]) -> Iterator[Batch]:
    """The same requests as columns."""
    left = iter(requests)
    while rows := list(islice(left, BATCH_REQUESTS)):
        yield Batch.of(rows)


class LineShape(NamedTuple):
    """How lines of a format describe requests with ids.

    Attributes:
        time: Name of the arrival.
        per_second: Its units in a second.
        input: Name of the prompt's length.
        output: Name of the generated length.
        ids: Name of the prompt's ids.
        block_tokens: Tokens that one of them stands for.
        partial: Whether a block that is not full must have an id; it may in any case.
    """

    time: str
    per_second: float
    input: str
    output: str
    ids: str
    block_tokens: int
    partial: bool

    def read(self, lines: Sequence[bytes]) -> Batch | None:
        """The requests of plain lines; None where any of them needs a closer look.

        What is refused here may still be right: ids of unsigned 64 bits are.
        """
        try:
            records = [from_json(line) for line in lines]
            arrival = _numbers([record[self.time] for record in records], {int, float}, np.float64)
            tokens_in = _numbers([record[self.input] for record in records], {int}, np.int64)
            tokens_out = _numbers([record[self.output] for record in records], {int}, np.int64)
            prompts = [record[self.ids] for record in records]
            _only(prompts, {list})
            ids = _numbers(list(chain.from_iterable(prompts)), {int}, np.int64)
        except (ValueError, TypeError, KeyError, OverflowError):
            return None
        counts = np.fromiter(map(len, prompts), np.int64, len(prompts))
        blocks = -(-tokens_in // self.block_tokens)
        fewest = blocks if self.partial else tokens_in // self.block_tokens
        fits = (
            (np.abs(arrival) <= MOST_S * self.per_second)
            & (tokens_in >= 1)
            & (tokens_in <= MAX_TOKENS)
            & (tokens_out >= 0)
            & (tokens_out <= MAX_TOKENS)
            & (counts >= fewest)
            & (counts <= blocks)
        )
        if not fits.all() or (ids == ODD_ID).any():
            return None
        runs = _join(ids, counts)
        return Batch(arrival / self.per_second, tokens_in, tokens_out, self.block_tokens, *runs)


def _numbers(values: list[Any], types: set[type], dtype: type) -> NDArray[Any]:
    _only(values, types)
    return np.array(values, dtype)


def _only(values: list[Any], types: set[type]) -> None:
    if not set(map(type, values)) <= types:
        raise TypeError


def _join(ids: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Request, first id and length of every maximal run."""
    begins = np.empty(len(ids), bool)
    begins[1:] = ids[1:] != ids[:-1] + 1
    begins[(counts.cumsum() - counts)[counts > 0]] = True
    first = np.flatnonzero(begins)
    request = np.repeat(np.arange(len(counts)), counts)
    return request[first], ids[first], np.append(first[1:], len(ids))[: len(first)] - first
