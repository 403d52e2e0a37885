"""Serving a trace by several replicas: what comes next, anywhere, is done next.

Prompts may be on their way from a prefill replica to a decode replica.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

from dsv4kv.config.load import change_config
from dsv4kv.config.replay import FleetSection, ReplayConfig, TiersSection
from dsv4kv.core.fleet import Endpoint, View
from dsv4kv.core.served import NEVER, Hit, Served
from dsv4kv.engines.contract import Sent
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.replay.build import Parts, Replay, begin_serving, build_replay, find_parts
from dsv4kv.replay.fleet.routers import Router, open_router
from dsv4kv.replay.memory import MemoryPlan, describe_deployment
from dsv4kv.replay.tier import Channel
from dsv4kv.replay.tiers import SharedTiers
from dsv4kv.traces.request import Request, Sessions

SentOf = Callable[[int, int], Sent]
"""What is sent, by tokens of the prompt and tokens that the other side has."""

_WHOLE = 1024  # tokens from which on a further block adds context alone


def find_sent(config: ReplayConfig, memory: MemoryPlan) -> SentOf:
    """What every rank sends, as ``fleet.transfer.engine`` has it; raises ``ConfigError``."""
    name = config.fleet.transfer.engine
    if name == "blocks" or not config.fleet.is_split:
        return partial(_send_blocks, memory)
    engine = find_engine(name)
    held = describe_deployment(config, memory.model, memory.schemas)
    deployment = replace(held, block_tokens=256)

    @cache
    def whole(tokens: int) -> Sent:
        found = engine.sent(deployment, tokens)
        if found is None:
            raise ConfigError(
                f"fleet.transfer.engine is {name}: how it sends {memory.model.name} is not known: "
                "take blocks."
            )
        return found

    def beyond(tokens: int, found: int) -> Sent:
        sent = whole(tokens)
        if not found:
            return sent
        more, base = whole(found + _WHOLE), whole(_WHOLE)
        size = sent.bytes - (more.bytes - base.bytes)
        return Sent(size, sent.descriptors - (more.descriptors - base.descriptors))

    whole(_WHOLE)  # refused before anything runs
    return beyond


def _send_blocks(memory: MemoryPlan, tokens: int, found_tokens: int) -> Sent:
    """Blocks of context, and windows and states of a request; a piece for every layer's."""
    blocks = -(-tokens // memory.block_tokens) - found_tokens // memory.block_tokens
    size = blocks * memory.block_bytes + memory.slot_bytes
    return Sent(size, (blocks + 1) * len(memory.schemas))


class Received:
    """Below a decode replica's cache: prompts that another replica has computed; see ``Below``.

    A request that begins has its prompt sent, without the blocks that are cached here. Its last
    token is computed again, as vLLM does, and gives the first token of the answer.
    """

    fetches = False

    def __init__(self, replica: "Replica") -> None:
        self.senders: dict[int, Replica] = {}  # of requests on their way, by their numbers
        self._own = replica

    def fetch(self, served: Served, found: int, usable: int) -> None:
        """Nothing: it is sent when the request begins."""

    def restore(self, served: Served, hit: Hit, usable: int) -> Hit:
        """All of a prompt, at ``served.ready_s``."""
        sender = self.senders.pop(served.number, None)
        if sender is None:
            return hit
        found_tokens = hit.resumed * self._own.parts.shared_tokens
        sent = sender.sent(served.input_tokens, found_tokens)
        served.ready_s = sender.link.move(self._own.now_s, sent.descriptors, sent.bytes)
        return Hit(usable, usable, usable)

    def offer(self, served: Served, blocks: int, tails: Sequence[int]) -> None:
        """Nothing is kept below."""

    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None:
        """Nothing is kept below."""


FindParts = Callable[[ReplayConfig, Sequence[Request]], Parts]
"""Works out what replicas that are set alike have in common: ``find_parts``, or remembers it."""


class Group(NamedTuple):
    """Replicas behind one router, all alike; ``settings`` differ from what is asked for all."""

    name: str
    replicas: int
    router: str
    config: ReplayConfig
    settings: Sequence[str] = ()


def list_groups(config: ReplayConfig) -> list[Group]:
    """Replicas that do both; or first those that compute prompts, then those that decode."""
    fleet = config.fleet
    if not fleet.is_split:
        return [Group("replica", fleet.replicas, fleet.router, config)]
    groups = [
        Group(name, its.replicas, router, _change(config, its.settings, name), its.settings)
        for name, its, router in (
            ("prefill", fleet.prefill, fleet.router),
            ("decode", fleet.decode, fleet.decode_router),
        )
    ]
    bare = groups[1].config.model_copy(update={"tiers": TiersSection()})
    return [groups[0], groups[1]._replace(config=bare)]


def _change(config: ReplayConfig, settings: Sequence[str], name: str) -> ReplayConfig:
    for text in settings:
        if text.startswith(("fleet.", "workload.")):
            raise ConfigError(
                f"fleet.{name} has {text!r}, which is not of a replica: set it for all."
            )
    return change_config(config, settings, f"fleet.{name}:") if settings else config


class Replica:
    """One server: a replay that a router feeds."""

    def __init__(
        self,
        name: str,
        group: Group,
        parts: Parts,  # what it has in common with replicas that are set alike
        sent: SentOf,
        looks: frozenset[str],  # what the router wants to know
        build: Callable[..., Replay],
        *,
        decodes: bool,
        records: bool,  # whether outcomes are kept
    ) -> None:
        self.name, self.parts, self.config = name, parts, group.config
        self.settings = shlex.join(group.settings)  # what differs from the configuration
        fleet, memory = self.config.fleet, parts.memory
        way = fleet.transfer  # over which it sends prompts, one at a time
        self.link = Channel(way.gbps, way.descriptor_us, setup_ms=way.setup_ms)
        self.sent = sent
        # prompts that are sent to it, where it only decodes
        self.received = Received(self) if decodes else None
        delay_s = fleet.event_delay_ms / 1e3
        # where it is sent requests
        self.endpoint = Endpoint(looks, delay_s, parts.shared_tokens, memory.block_tokens)
        self.replay = build(self.config, parts=parts, source=self.endpoint, below=self.received)
        self.served = self.endpoint.served
        self.replay.scheduler.records = records
        self.endpoint.run_by(self.replay.scheduler, peeks=parts.engine is not None)

    @property
    def now_s(self) -> float:
        return self.replay.scheduler.clock.now_s

    def found_tokens(self, served: Served) -> int:
        return self.replay.scheduler.prompts.look_up(served) * self.parts.shared_tokens

    def look_below(self, view: View, keys: Sequence[int], until_s: float) -> None:
        """Add tokens in tiers at ``until_s``, one behind the other, without shared tiers."""
        tiers = self.replay.tiers
        if tiers is None:
            return
        each = tiers.object_tokens
        size = each // self.parts.shared_tokens
        ends = keys[size - 1 :: size]
        first = reach = view.device_tokens // each
        for tier in tiers.tiers:
            shared = tier.name in self.config.fleet.shared_tiers
            begin = end = first if shared else reach
            while end < len(ends) and tier.ready_s(ends[end]) <= until_s:
                end += 1
            if tier.name in ("host", "disk") and not shared:
                setattr(view, f"{tier.name}_tokens", (end - begin) * each)
            reach = max(reach, end)


class Pool:
    """Replicas behind a router, which learns what is cached, and queues, ``delay_s`` late."""

    def __init__(self, replicas: list[Replica], router: Router, delay_s: float) -> None:
        self.replicas, self.router, self._delay_s = replicas, router, delay_s
        self._has_tiers = any(replica.replay.tiers for replica in replicas)

    def route(self, served: Served) -> int:
        """Choose a replica; those that the router looks at take their turns first."""
        looks, views = self.router.looks, list[View]()
        if looks:
            keys = served.keys if "prefix" in looks else []
            views = [replica.endpoint.look(served, keys) for replica in self.replicas]
            if "prefix" in looks and self._has_tiers:
                for replica, view in zip(self.replicas, views, strict=True):
                    replica.look_below(view, keys, served.arrival_s - self._delay_s)
        place = self.router.choose(served, views)
        self.router.sent(served, place)
        endpoint = self.replicas[place].endpoint
        endpoint.advance(served.arrival_s)
        if looks:
            endpoint.send(served, views[place].device_tokens)
        endpoint.give(served)
        return place


def find_sessions(requests: Sequence[Request]) -> list[int]:
    """The conversation of every request: the trace's, else by what prompts begin with."""
    named = [request.session for request in requests if request.session is not None]
    if named:
        others = count(max(named) + 1)
        return [next(others) if each.session is None else each.session for each in requests]
    sessions = Sessions()
    return [sessions.place(request)[0] for request in requests]


def check_sessions(requests: Sequence[Request], fleet: FleetSection) -> None:
    """Refuse think times where nothing says which requests belong together."""
    known = any(each.session is not None or len(each.prefix_hashes) for each in requests)
    if fleet.sessions == "think" and not known:
        raise ConfigError(
            "fleet.sessions think: the trace has neither sessions nor block ids, so every request "
            "is a session of its own and it would change nothing: leave it out, or take a trace "
            "with conversations."
        )


def find_turns(
    requests: Sequence[Request], sessions: Sequence[int], config: ReplayConfig
) -> Iterator[tuple[int | None, bool, float]]:
    """When every request comes, in order.

    Gives the request that it follows, None where it comes by itself; whether it follows its answer
    rather than its arrival; and how much later, by itself since the start, in s.

    With think times a request follows the last answer of its conversation that it could have
    seen when it was recorded; while all before it were being answered, the last of these comes
    before it. The first of a conversation comes by itself. Answers without recorded times took
    none, so the time since the request before is an upper bound.
    """
    first_s, speed = (requests[0].arrival_s if requests else 0.0), config.workload.speed
    thinks = config.fleet.sessions == "think"
    past = dict[int, list[int]]()
    for number, request in enumerate(requests):
        before = past.setdefault(sessions[number], []) if thinks else []
        ends_s = {n: requests[n].arrival_s + (requests[n].answer_s or 0.0) for n in before}
        seen = [each for each in before if ends_s[each] <= request.arrival_s]
        if seen:
            last = max(seen, key=lambda each: (ends_s[each], each))
            yield last, True, (request.arrival_s - ends_s[last]) / speed
        elif before:
            last = before[-1]
            yield last, False, (request.arrival_s - requests[last].arrival_s) / speed
        else:
            yield None, False, (request.arrival_s - first_s) / speed
        before.append(number)


class Fleet:
    """All replicas in one virtual time.

    A replica takes its turns when a router looks at it or sends it a request; in the order of time
    where others depend on it: by a shared tier, waits for answers, prompts that are sent.
    """

    def __init__(
        self,
        config: ReplayConfig,
        requests: Sequence[Request],
        find: FindParts = find_parts,
        *,
        records: bool = True,
    ) -> None:
        """``records``: whether replicas keep what the record of a run has."""
        self.config = config  # the configuration
        self.requests = requests  # all requests
        self.ended = False  # whether every request was served or rejected
        self.prompts = dict[int, Served]()  # requests by number, where their prompts are computed
        self.answers = dict[int, Served]()  # requests by number, where they decode
        self._find, self._records = find, records
        self._longest = config.workload.max_output_tokens
        fleet = config.fleet
        check_sessions(requests, fleet)
        self._shared = SharedTiers()
        self._draw = Random(config.measure.seed)
        self._pools = [
            self._open(group, decodes=stage > 0) for stage, group in enumerate(list_groups(config))
        ]
        self.pools = [pool.replicas for pool in self._pools]  # replicas by pool, prefill first
        self._in_order = fleet.sessions == "think" or bool(fleet.shared_tiers)
        self._sessions = [0] * len(requests)
        if fleet.sessions == "think" or any(pool.router.by_session for pool in self._pools):
            self._sessions = find_sessions(requests)
        self._arrivals: list[tuple[float, int, int]] = []  # when, whose, to which pool
        self._next: dict[tuple[int, bool], list[tuple[int, float]]] = {}
        self._senders: dict[int, Replica] = {}
        self._busy: list[tuple[float, int, int, int]] = []  # when, entry, pool, replica
        self._entries: dict[tuple[int, int], int] = {}
        self._order, self._done = count(), 0
        for number, (after, answered, gap_s) in enumerate(
            find_turns(requests, self._sessions, config)
        ):
            if after is None:
                heappush(self._arrivals, (gap_s, number, 0))
            else:
                self._next.setdefault((after, answered), []).append((number, gap_s))

    @property
    def replicas(self) -> list[Replica]:
        return [replica for pool in self.pools for replica in pool]

    def _open(self, group: Group, *, decodes: bool) -> Pool:
        parts = self._find(group.config, self.requests)
        size = parts.memory.block_tokens
        router = open_router(group.router, group.replicas, size, self._draw)
        build = partial(build_replay, requests=self.requests, shared=self._shared)
        sent = find_sent(group.config, parts.memory)
        make = partial(Replica, group=group, parts=parts, sent=sent, looks=router.looks)
        replicas = [
            make(f"{group.name} {n}", build=build, decodes=decodes, records=self._records)
            for n in range(group.replicas)
        ]
        return Pool(replicas, router, self.config.fleet.event_delay_ms / 1e3)

    def close(self) -> None:
        """Let go of the requests; replicas are left to the collector of cycles."""
        for replica in self.replicas:
            replica.endpoint.served.clear()
        self.prompts.clear()
        self.answers.clear()

    def run(self) -> Iterator[int]:
        """Serve every request to its end; gives how many are done whenever one has come."""
        while True:
            comes_s = self._arrivals[0][0] if self._arrivals else NEVER
            turn_s = self._next_turn_s()
            if turn_s < comes_s:
                _, _, stage, place = heappop(self._busy)
                endpoint = self.pools[stage][place].endpoint
                again_s = endpoint.turn(min(comes_s, self._next_turn_s()))
                self._schedule(stage, place, again_s)
                self._collect(stage, place)
            elif comes_s < NEVER:
                self._receive(*heappop(self._arrivals))
                yield self._done
            else:
                break
        for stage, pool in enumerate(self.pools):
            for place, replica in enumerate(pool):
                replica.endpoint.advance(NEVER)
                self._collect(stage, place)
        self.ended = True
        yield self._done

    def _next_turn_s(self) -> float:
        """When a replica of those in order has something to do next."""
        busy = self._busy
        while busy and self._entries[busy[0][2:]] != busy[0][1]:
            heappop(busy)
        return busy[0][0] if busy else NEVER

    def _schedule(self, stage: int, place: int, when_s: float) -> None:
        """Let a replica take its turns in order, if others depend on it."""
        received = self.pools[stage][place].received
        sends = len(self._pools) > 1 and not stage
        if self._in_order or sends or (received and received.senders):
            self._entries[stage, place] = entry = next(self._order)
            if when_s < NEVER:
                heappush(self._busy, (when_s, entry, stage, place))

    def _receive(self, now_s: float, number: int, stage: int) -> None:
        request, longest = self.requests[number], self._longest
        if len(self._pools) > 1 and not stage:
            longest = 1 if longest is None else min(1, longest)
        pool = self._pools[stage]
        keys = pool.replicas[0].parts.keys
        served = begin_serving(number, request, now_s, keys, longest)
        served.session = self._sessions[number]
        place = pool.route(served)
        replica = pool.replicas[place]
        if stage:
            assert replica.received
            served.sent_tokens = request.input_tokens - 1
            replica.received.senders[number] = self._senders.pop(number)
        else:
            self.prompts[number] = served
            self._follow(number, now_s, answered=False)
        self.answers[number] = served
        self._schedule(stage, place, max(now_s, replica.now_s))
        self._collect(stage, place)

    def _collect(self, stage: int, place: int) -> None:
        replica = self.pools[stage][place]
        if not replica.endpoint.ended:
            return
        ended, replica.endpoint.ended = replica.endpoint.ended, []
        for served in ended:
            output, longest = self.requests[served.number].output_tokens, self._longest
            output = output if longest is None else min(output, longest)
            goes_on = len(self._pools) > 1 and not stage and output > 1
            if goes_on and served.finished_s is not None:
                self._senders[served.number] = replica
                heappush(self._arrivals, (served.finished_s, served.number, 1))
                continue
            self._done += 1
            client_s = replica.parts.times.client_s
            self._follow(served.number, replica.now_s + client_s, answered=True)

    def _follow(self, number: int, now_s: float, *, answered: bool) -> None:
        for after, gap_s in self._next.pop((number, answered), ()):
            heappush(self._arrivals, (now_s + gap_s, after, 0))
