"""Candidate servers with bounds of their latency and throughput, and deployments simulated.

A simulation ends when it is clear whether its deployment keeps the limits.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import add, gt
from typing import Any, NamedTuple, Self

import numpy as np

from dsv4kv.budget.launch import launch_command
from dsv4kv.budget.layout import Layout, LayoutWish, candidate_layouts
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import GroupSection, ReplayConfig
from dsv4kv.core.served import Served
from dsv4kv.engines.names import family_of, replayed_engines, sends_of
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.files import whole_text
from dsv4kv.model.presets import load_model
from dsv4kv.replay.build import Parts, find_parts
from dsv4kv.replay.clock.steps import ModelTimes
from dsv4kv.replay.fleet.case import Fates
from dsv4kv.replay.fleet.run import FindParts, Fleet, Replica
from dsv4kv.replay.memory import check_fit
from dsv4kv.replay.plan.question import Question, Slo
from dsv4kv.traces.request import Request

SIZES = (1, 2, 4, 8)  # GPUs of a replica: up to one machine


def layouts_of(preset: str) -> list[Layout]:
    """Return every layout of a replica over the GPUs of a machine; experts as engines do."""
    model, found = load_model(preset), []
    for gpus in SIZES:
        for dp in (size for size in SIZES if size <= gpus):
            try:
                wish = LayoutWish(gpus=gpus, dp=dp, tp=gpus // dp)
                found += candidate_layouts(model, wish, gpus)
            except ConfigError:  # more ranks than heads, or than divide them
                continue
    return found


def name_args(texts: Sequence[str]) -> dict[str, str]:
    """Return alternatives by name: ``args 2`` is the second; an empty one has no name."""
    texts = list(map(whole_text, texts))
    if len(texts) < 2:
        return {"": " ".join(texts)}
    return {f"args {place}" if text else "": text for place, text in enumerate(texts, 1)}


@dataclass(frozen=True)
class Server:
    """One replica that starts and holds the longest request; ``variant`` names its ``--args``."""

    gpu: str
    layout: Layout
    config: ReplayConfig
    command: str
    variant: str
    parts: Parts

    @property
    def label(self) -> str:
        """``h200 TP8``."""
        return f"{self.gpu} {self.layout.label}"

    @property
    def times(self) -> ModelTimes:
        return self.parts.times


def open_server(
    question: Question,
    settings: Sequence[str],
    engine: str,
    gpu: str,
    layout: Layout,
    variant: str = "",
    args: str = "",
) -> Server:
    """Size a server, with ``args`` in its command; raises ``DoesNotFit``, ``ConfigError``."""
    asked = load_config(None, settings, ReplayConfig).config
    family = family_of(engine)
    if family is None or not family.rules:
        known = " or ".join(replayed_engines())
        raise ConfigError(f"--engine {engine}: choose {known}, or a version of theirs.")
    drafts = asked.scheduler.speculative.draft_tokens
    command = launch_command(engine, asked.model.preset, layout, drafts, args)
    cost = asked.cost.model_copy(update={"gpu": gpu, "gpus": layout.gpus})
    server = asked.server.model_copy(update={"engine": engine, "command": command})
    config = asked.model_copy(update={"cost": cost, "server": server})
    longest = max(question.requests, key=lambda each: each.total_tokens)
    parts = find_parts(config, [longest])
    if (started := parts.times.layout) != layout:
        raise ConfigError(
            f"--args {args!r} makes {layout.label} {started.label}: layouts are searched; leave "
            "their flags out."
        )
    check_fit(parts.config.cost, parts.memory, parts.weights)
    needed, memory = parts.memory.group.blocks_for(longest.total_tokens), parts.memory
    if needed > memory.num_blocks or longest.total_tokens > memory.max_context_tokens:
        raise DoesNotFit(f"the longest request, {longest.total_tokens:,} tokens, does not fit")
    return Server(gpu, layout, config, command, variant, parts)


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of every deployment of a server, for any router and number of replicas.

    The times of ``clock.steps`` grow with everything in a step, and by less the fuller it is. So
    no prompt is faster than alone with the best cache there can be, no token than alone after the
    shortest prompt, and no work is done for less than in a full step.
    """

    server: Server  # the server
    question: Question  # limits and requests

    @property
    def _step_tokens(self) -> int:
        return self.server.parts.config.scheduler.step_tokens // self.server.layout.dp

    @cached_property
    def _unseen(self) -> list[int]:
        config, question = self.server.config, self.question
        if not config.prefix.reuse:
            return [each.input_tokens for each in question.requests]
        mixes = config.fleet.sessions == "think" or bool(config.fleet.shared_tiers)
        return question.unseen_in_any_order if mixes else question.unseen

    @cached_property
    def ttft_s(self) -> list[float]:
        """Least time to the first token of every request."""
        times, step_tokens = self.server.times, self._step_tokens
        full_s = times.prompt_s(step_tokens)
        tails = {tokens % step_tokens for tokens in self._unseen} - {0}
        tail_s = {tokens: times.prompt_s(tokens) for tokens in tails} | {0: 0.0}
        return [
            times.client_s + tokens // step_tokens * full_s + tail_s[tokens % step_tokens]
            for tokens in self._unseen
        ]

    @cached_property
    def tpot_s(self) -> float:
        """Lower bound of TPOT: a decode pass, or a chunk that takes the token along."""
        shortest = min(each.input_tokens for each in self.question.requests)
        drafts = self.server.parts.config.scheduler.speculative.draft_tokens
        times = self.server.times
        alone_s = times.decode_s(1, shortest, drafts)
        return min(alone_s, times.prompt_s(1)) / (1 + drafts)

    @cached_property
    def least_s(self) -> dict[str, float]:
        return {
            slo.label: self.tpot_s
            if slo.name == "tpot"
            else float(np.percentile(self.ttft_s, slo.percent, method="lower"))
            for slo in self.question.slos
        }

    def broken(self) -> str | None:
        """Return the time of the first limit that even a request alone breaks, if any."""
        for slo in self.question.slos:
            if self.least_s[slo.label] > slo.limit_s:
                return slo.name if slo.name == "tpot" else "ttft"
        return None

    @cached_property
    def work_s(self) -> float:
        """Least seconds of a replica for prompts within the percentile, without the most work."""
        step_tokens, times = self._step_tokens, self.server.times
        dp = self.server.layout.dp
        token_s = times.prompt_s(step_tokens, ranks=dp) / (step_tokens * dp)
        percent = max(slo.percent for slo in self.question.slos if slo.name != "tpot")
        bound = sorted(self._unseen)[: math.floor(percent / 100 * (len(self._unseen) - 1))]
        return sum(bound) * token_s

    def replicas(self, speed: float) -> int:
        """The fewest that compute these prompts in time; 1 where late answers delay others."""
        if self.server.config.fleet.sessions == "think":
            return 1
        late_s = max(slo.limit_s for slo in self.question.slos if slo.name != "tpot")
        return max(1, math.ceil(self.work_s / (self.question.span_s / speed + late_s)))


_CHECKS = 100  # how often a simulation checks whether its limits are lost


class Split(NamedTuple):
    """Replicas of a unit that compute prompts, and replicas that decode."""

    prefill: int
    decode: int


def parse_splits(texts: Sequence[str]) -> list[Split | None]:
    """Read ``none`` and ``1:2``; raises ``ConfigError``."""
    splits = list[Split | None]()
    for text in dict.fromkeys(texts):
        match = re.fullmatch(r"([1-9]\d{0,3}):([1-9]\d{0,3})", text, re.ASCII)
        if match is None and text != "none":
            raise ConfigError(
                f"--split {text[:60]}: write prefill and decode replicas, 1:2, up to 9,999 of "
                "each, or none for replicas that do both."
            )
        splits.append(Split(int(match[1]), int(match[2])) if match else None)
    return splits


@dataclass(frozen=True)
class Kind:
    """Servers of one kind behind a router, alike or in units of prefill and decode replicas."""

    server: Server
    router: str
    bounds: Bounds
    split: Split | None = None

    @property
    def label(self) -> str:
        """``h200 TP8 behind dynamo``, ``h200 TP8 1:2 behind dynamo``."""
        return f"{self.servers} behind {self.router}"

    @property
    def servers(self) -> str:
        """``h200 TP8``, ``h200 TP8 1:2``, ``h200 TP8 args 2``."""
        ratio = " {}:{}".format(*self.split) if self.split else ""
        return f"{self.server.label}{ratio} {self.server.variant}".rstrip()

    @property
    def gpus(self) -> int:
        return self.server.layout.gpus * sum(self.split or (1,))

    def cost(self, units: int, question: Question) -> float:
        """GPUs, or money in an hour where GPUs have prices."""
        return units * self.gpus * question.price(self.server.gpu)

    def min_units(self, speed: float) -> int:
        return -(-self.bounds.replicas(speed) // (self.split or (1,))[0])

    def key(self, units: int, speed: float) -> tuple[object, ...]:
        """Identify a simulation; the router does not matter with a single replica."""
        alone = units * (self.split or (1,))[0] == 1
        return self.servers, "" if alone else self.router, units, speed

    def fleet(self, units: int) -> dict[str, Any]:
        if self.split is None:
            return {"replicas": units, "router": self.router}
        prefill, decode = (GroupSection(replicas=units * each) for each in self.split)
        asked = self.server.config
        sends = sends_of(asked.server.engine or "")
        transfer = asked.fleet.transfer.model_copy(update={"engine": sends})
        groups = {"prefill": prefill, "decode": decode}
        return {**groups, "router": self.router, "transfer": transfer}


@dataclass(frozen=True)
class Trial:
    """A simulated deployment."""

    kind: Kind
    units: int  # number of replicas, or of units of prefill and decode replicas
    speed: float  # trace seconds per second
    cost: float  # GPUs, or money in an hour
    values_s: dict[str, float]  # percentiles in s by label of limits; empty if it ended early
    rate: float  # requests that arrive, per s
    good: float  # share of requests that keep every limit
    meets: bool
    requests: int
    came: int  # requests that arrived before it ended
    served: int
    hit_share: float = 0.0  # share of prompt tokens that hit the prefix cache
    busy_share: float = 0.0  # share of the time in which a step runs, of the busiest role
    tpot_p99_s: float = 0.0

    @property
    def gpus(self) -> int:
        return self.units * self.kind.gpus

    @property
    def roles(self) -> dict[str, int]:
        """Replicas by role; of the role ``""`` where every replica does both."""
        split = self.kind.split
        return {r: self.units * n for r, n in (split._asdict() if split else {"": 1}).items()}

    def tightest(self, slos: Sequence[Slo]) -> Slo:
        return max(slos, key=lambda slo: self.values_s.get(slo.label, 0.0) / slo.limit_s)

    def excess(self, slos: Sequence[Slo]) -> float:
        return max(self.values_s.get(slo.label, 0.0) / slo.limit_s for slo in slos)

    def under(self, slos: Sequence[Slo]) -> Self:
        """Return the same trial judged by tighter limits; ``good`` stays."""
        kept = self.meets and all(self.values_s[slo.label] <= slo.limit_s for slo in slos)
        return replace(self, meets=kept)

    def near(self, slos: Sequence[Slo]) -> list[Slo]:
        """Return the limits that it keeps by less than the clock's error."""
        return [slo for slo in slos if self.values_s[slo.label] * self.error(slo) > slo.limit_s]

    def error(self, slo: Slo) -> float:
        """Return the factor within which the clock gets the time of a limit right."""
        return self.kind.server.times.held_out.of(slo.name)


class LateRequests:
    """Counts requests that break limits while a fleet serves them."""

    def __init__(self, slos: Sequence[Slo], count: int) -> None:
        self._slos = slos
        self._allowed = [(1 - slo.percent / 100) * (count - 1) + 1 for slo in slos]
        self._late = [0] * len(slos)  # of requests that have ended
        self._open: dict[int, list[Served]] = {}  # by replica
        self._seen: dict[int, int] = {}  # requests of a replica that were looked at

    def lose_a_limit(self, so_far: Fleet) -> bool:
        """Whether a limit is lost whatever happens to the other requests."""
        unfinished = [0] * len(self._slos)
        for pool in so_far.pools:
            for replica in pool:
                place, given, still_open = id(replica), replica.served, list[Served]()
                begun, seen = self._open.get(place, ()), self._seen.get(place, 0)
                if not begun and seen == len(given):
                    continue
                for served in (*begun, *given[seen:]):
                    if so_far.answers[served.number] is not served:  # it moved on to decode
                        continue
                    ended = served.finished_s is not None and pool is so_far.pools[-1]
                    if not ended:
                        still_open.append(served)
                    counts = self._late if ended else unfinished
                    times_s = _times_so_far(replica, served, so_far.prompts[served.number])
                    for slot, slo in enumerate(self._slos):
                        counts[slot] += times_s.get(slo.name, 0.0) > slo.limit_s
                self._open[place], self._seen[place] = still_open, len(given)
        return any(map(gt, map(add, unfinished, self._late), self._allowed))


def _times_so_far(replica: Replica, served: Served, asked: Served) -> dict[str, float]:
    """Times of a request; of one that has not ended, lower bounds."""
    if served.finished_s is not None:
        return replica.replay.outcome.times(served, asked)
    first_s = replica.now_s if served.first_token_s is None else served.first_token_s
    return {"latency": replica.now_s - asked.arrival_s, "ttft": first_s - asked.arrival_s}


def simulate(
    question: Question,
    requests: Sequence[Request],
    kind: Kind,
    units: int,
    speed: float,
    find: FindParts = find_parts,
    *,
    to_end: bool = False,
) -> Trial:
    """Serve requests until all are served or, unless ``to_end``, a limit is lost."""
    base, slos, count = kind.server.config, question.slos, len(requests)
    fleet = base.fleet.model_copy(update=kind.fleet(units))
    workload = base.workload.model_copy(update={"speed": speed})
    config = base.model_copy(update={"fleet": fleet, "workload": workload})
    made, late = Fleet(config, requests, find, records=False), LateRequests(slos, count)
    interval, lost = max(1, count // _CHECKS), False
    for number, _ in enumerate(made.run(), 1):
        lost = not to_end and number % interval == 0 and late.lose_a_limit(made)
        if lost:
            break
    span_s = (requests[-1].arrival_s - requests[0].arrival_s) / speed
    rate, cost = count / max(span_s, 1e-9), kind.cost(units, question)
    trial = partial(Trial, kind, units, speed, rate=rate, cost=cost, requests=count)
    if lost:
        served = sum(each.finished_s is not None for each in made.answers.values())
        came = len(made.answers)
        made.close()
        return trial(values_s={}, good=0.0, meets=False, came=came, served=served)
    fates = Fates(made)

    def percentile_s(name: str, percent: float) -> float:
        return float(np.percentile(fates.samples_ns[name] or [0], percent)) / 1e9

    values_s = {slo.label: percentile_s(slo.name, slo.percent) for slo in slos}
    asked, served = question.asked or slos, len(fates.numbers)
    limits_s = {slo.name: min(s.limit_s for s in asked if s.name == slo.name) for slo in asked}
    tallies = [replica.replay.prompts.tally for replica in made.pools[0]]
    tokens = sum(tally.prompt_tokens for tally in tallies)
    saved_tokens = sum(tally.saved_tokens for tally in tallies)
    busy_share = max(map(_busy_share, made.pools))
    made.close()
    return trial(
        values_s=values_s,
        good=len(fates.good(limits_s)) / count,
        meets=served == count and all(values_s[slo.label] <= slo.limit_s for slo in slos),
        came=count,
        served=served,
        hit_share=saved_tokens / tokens if tokens else 0.0,
        busy_share=busy_share,
        tpot_p99_s=percentile_s("tpot", 99),
    )


def _busy_share(pool: Sequence[Replica]) -> float:
    """Of the time from the first arrival to the last answer of the pool's last replica."""
    clocks = [replica.replay.scheduler.clock for replica in pool]
    end_s = max(clock.now_s for clock in clocks)
    busy_s = sum(clock.now_s - clock.idle_s for clock in clocks)
    return busy_s / end_s / len(clocks) if end_s else 0.0
