"""The question of a plan: limits of latency, the requests, prices and number of GPUs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from random import Random

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError
from dsv4kv.traces.files import MAX_TOKENS
from dsv4kv.traces.paths import collect_paths, find_reuse
from dsv4kv.traces.request import Request

_SLO = re.compile(r"(ttft|tpot|latency)_p(\d{1,2}(?:\.\d{1,3})?)=(\d+(?:\.\d+)?)(ms|s)")
MOST_GPUS = 256  # default of the most GPUs that a deployment may have
STATIC_REQUESTS, STATIC_S = 600, 40.0
"""Minimum of a static question: requests, six of them beyond p99, and seconds in which they
arrive, longer than an answer takes, so that a growing queue shows."""
_WAITS = 10
"""These seconds in units of the longest limit: with a ninth more work than a server can do, a
tenth of the requests then wait beyond the limit."""


_LONGEST_S = 86_400


@dataclass(frozen=True)
class Slo:
    """A limit, in s, of a percentile of ``ttft``, ``tpot`` or ``latency``."""

    name: str
    percent: float
    limit_s: float

    @property
    def label(self) -> str:
        return f"{self.name}_p{self.percent:g}"  # ttft_p99


def parse_slos(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Read ``ttft_p99=2s``, ``tpot_p50=50ms``; raises ``ConfigError``."""
    slos = list[Slo]()
    for text in texts:
        match = _SLO.fullmatch(text.replace(" ", ""))
        if match is None or not float(match[3]) or not float(match[2]):
            raise ConfigError(
                f"--slo {text}: write a time, its percentile and its limit: ttft_p99=2s, "
                "tpot_p50=50ms or latency_p90=30s."
            )
        limit_s = float(match[3]) / (1e3 if match[4] == "ms" else 1.0)
        if limit_s > _LONGEST_S:
            raise ConfigError(f"--slo {text[:60]}: a limit is at most a day, {_LONGEST_S:,} s.")
        slo = Slo(match[1], float(match[2]), limit_s)
        if slo.label in (each.label for each in slos):
            raise ConfigError(f"--slo {text}: {slo.label} has a limit already: keep one of them.")
        slos.append(slo)
    if not {slo.name for slo in slos} & {"ttft", "latency"}:
        raise ConfigError(
            "no --slo limits how long a request may wait, so one server with a long queue would "
            "do: add --slo ttft_p99=2s, or a latency."
        )
    return tuple(slos)


def parse_prices(texts: Sequence[str], gpus: Sequence[str]) -> dict[str, float]:
    """Read ``h200=2.5``: prices of all of ``gpus``, or of none; raises ``ConfigError``."""
    prices = dict[str, float]()
    for text in texts:
        name, _, value = text.partition("=")
        try:
            price = float(value)
        except ValueError:
            raise ConfigError(f"--price {text}: write a GPU and a number: h200=2.5.") from None
        if name not in gpus:
            raise ConfigError(
                f"--price {text}: {name} is not asked about: --gpu {','.join(gpus)}."
            )
        if name in prices:
            raise ConfigError(f"--price {text}: {name} has a price already: keep one of them.")
        if not 0 < price < inf:
            raise ConfigError(
                f"--price {text}: what costs nothing is never too much: a price is more than 0."
            )
        prices[name] = price
    if prices and (unpriced := [gpu for gpu in gpus if gpu not in prices]):
        raise ConfigError(f"--price: give one for {', '.join(unpriced)}, too: {unpriced[0]}=2.5.")
    return prices


_DECIDED = {
    "model.preset": "say --model",
    "server.engine": "say --engine",
    "server.command": "flags of the engine are --args",
    "cost.gpu": "say --gpu",
    "cost.gpus": "say --gpus",
    **{f"cost.{ranks}": "layouts are searched" for ranks in ("tp", "dp", "pp", "ep")},
    "fleet.replicas": "replicas are searched",
    "fleet.router": "say --router",
    **{f"fleet.{role}": "say --split" for role in ("prefill", "decode")},
    "fleet.gpu_hour_price": "say --price",
    "workload.trace": "name the trace first",
    "workload.speed": "say --speed",
    "workload.arrivals": "requests come at a rate here, when the trace says",
    "workload.concurrency": "requests come at a rate here, when the trace says",
}
"""Settings of a replay that a plan decides, and the option to use instead."""


def check_settings(settings: Sequence[str]) -> None:
    """Refuse settings that would have no effect; raises ``ConfigError``."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        for decided, instead in _DECIDED.items():
            if name == decided or name.startswith(f"{decided}."):
                raise ConfigError(f"--set {setting}: plan decides {decided}: {instead}.")


@dataclass(frozen=True)
class Question:
    """Which deployment keeps limits of latency on a trace."""

    requests: Sequence[Request]  # the whole trace
    slos: tuple[Slo, ...]  # the limits
    speed: float = 1.0  # seconds of the trace in one second
    prices: Mapping[str, float] | None = None  # of a GPU's hour; empty where GPUs are counted
    most_gpus: int = MOST_GPUS  # GPUs that a deployment may have
    exactly: bool = False  # it has all of them: the highest rate is asked for, not the least cost
    asked: tuple[Slo, ...] | None = None  # the limits given, where ``slos`` are tighter

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for a limit of TPOT if every answer has one token."""
        tokens = any(slo.name == "tpot" for slo in self.slos)
        if tokens and all(each.output_tokens < 2 for each in self.requests):
            raise ConfigError(
                "--slo tpot: every answer has one token, so there is no time per output token: "
                "remove this limit."
            )

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last, at the trace's own speed."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    @cached_property
    def unseen(self) -> list[int]:
        return unseen_tokens(self.requests)

    @cached_property
    def unseen_in_any_order(self) -> list[int]:
        """See ``unseen_tokens``: for think times, which may change the order."""
        return unseen_tokens(self.requests, any_order=True)

    @property
    def exact_gpus(self) -> int | None:
        """GPUs that a deployment has to use; None where they are a limit."""
        return self.most_gpus if self.exactly else None

    def counts(self, unit_gpus: int) -> int:
        """How many numbers of units of ``unit_gpus`` each are allowed."""
        if self.exactly:
            return int(self.most_gpus % unit_gpus == 0)
        return self.most_gpus // unit_gpus

    def price(self, gpu: str) -> float:
        """Price of an hour of a GPU; 1 where GPUs are counted."""
        return self.prices[gpu] if self.prices else 1.0


def poisson(isl: int, osl: int, rate: float, seed: int, slos: Sequence[Slo] = ()) -> list[Request]:
    """Equal requests at random, ``rate`` a second, for so long that a growing queue shows."""
    if max(isl, osl) > MAX_TOKENS:
        raise ConfigError(f"--isl and --osl: give at most {MAX_TOKENS:,} tokens.")
    draw, now_s, made = Random(seed), 0.0, []
    longest_s = max((slo.limit_s for slo in slos if slo.name != "tpot"), default=0.0)
    for _ in range(max(STATIC_REQUESTS, round(rate * max(STATIC_S, _WAITS * longest_s)))):
        made.append(Request(now_s, isl, osl))
        now_s += draw.expovariate(rate)
    return made


def busiest(requests: Sequence[Request], count: int) -> list[Request]:
    """The ``count`` requests in a row with most prompt tokens a second, from 0; or all."""
    if len(requests) <= count:
        return list(requests)
    total = np.cumsum([0, *(request.input_tokens for request in requests)])
    arrival_s = np.array([request.arrival_s for request in requests])
    span_s = np.maximum(arrival_s[count - 1 : -1] - arrival_s[:-count], 1e-9)
    place = int(np.argmax((total[count:-1] - total[: -count - 1]) / span_s))
    window, first_s = requests[place : place + count], requests[place].arrival_s
    return [replace(each, arrival_s=each.arrival_s - first_s) for each in window]


def unseen_tokens(requests: Sequence[Request], *, any_order: bool = False) -> list[int]:
    """Prompt tokens that no earlier request had (``any_order``: no other): always computed."""
    if not any(len(request.prefix_hashes) for request in requests):
        return [request.input_tokens for request in requests]

    def known_blocks(requests: Sequence[Request]) -> NDArray[np.int64]:
        """int64[requests]: leading blocks that an earlier request had."""
        table = collect_paths(requests)
        return find_reuse(table, table.block_tokens).found_blocks(None)

    known = known_blocks(requests)
    if any_order:
        known = np.maximum(known, known_blocks(requests[::-1])[::-1])
    return [
        request.input_tokens - min(blocks * request.hash_block_tokens, request.input_tokens - 1)
        for request, blocks in zip(requests, known.tolist(), strict=True)
    ]
