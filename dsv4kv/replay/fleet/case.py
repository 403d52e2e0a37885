"""The record of a fleet: the case of a replay for all replicas together, and a row for each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from math import lcm
from statistics import mean

import numpy as np

from dsv4kv.config.load import Point
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.replay import run
from dsv4kv.replay.build import Replay
from dsv4kv.replay.fleet.run import Fleet, Replica
from dsv4kv.runs import parts
from dsv4kv.runs.schema import Case, Totals
from dsv4kv.traces.paths import Ints, collect_paths, find_reuse, number_prompts
from dsv4kv.traces.request import Request


def ideal_saved_tokens(
    requests: Sequence[Request], block_tokens: int, blocks: int | None = None
) -> int:
    """Tokens that an LRU pool of ``blocks`` would save, a request at a time; 0 without ids."""
    if not any(len(request.prefix_hashes) for request in requests):
        return 0
    table = collect_paths(requests)
    reuse = find_reuse(table, block_tokens, whole_blocks=True)
    usable = (table.input_tokens - 1) // block_tokens
    found = reuse.found_blocks(blocks)
    return int((found.clip(max=usable) * block_tokens).sum())


def shared_bytes(replica: Replica) -> int:
    return replica.replay.scheduler.cache.per_shared * replica.replay.memory.block_bytes


def held_blocks(replica: Replica) -> Ints:
    """int64: the shared blocks that the prompts it was given would find again."""
    look_up = replica.replay.scheduler.prompts.look_up
    return _distinct(served.keys[: look_up(served)] for served in replica.served)


def _distinct(blocks: Iterable[list[int]]) -> Ints:
    return np.unique(np.fromiter(chain.from_iterable(blocks), np.int64))


def repeated_bytes(fleet: Fleet) -> int:
    """What replicas have that one before has; other sizes count in common multiples."""
    if not any(len(request.prefix_hashes) for request in fleet.requests):
        return 0
    size = lcm(*(each.parts.shared_tokens for each in fleet.replicas))
    path = number_prompts(collect_paths(fleet.requests), size).path
    seen, total = np.zeros(0, np.int64), 0
    for replica in fleet.replicas:
        blocks = _distinct(
            path(each.number)[: replica.found_tokens(each) // size] for each in replica.served
        )
        each_bytes = size // replica.parts.shared_tokens * shared_bytes(replica)
        total += int(np.isin(blocks, seen).sum()) * each_bytes
        seen = np.union1d(seen, blocks)
    return total


_NS = 1e9


class Fates:
    """What requests that were served to their end waited for, in the order in which they ended.

    ``times`` are in s by number and name, as ``Outcome`` has them, ``samples_ns`` by name; a split
    fleet's first token is the decode replica's.
    """

    def __init__(self, fleet: Fleet) -> None:
        ended = [
            (served.finished_s, served.number, replica.replay.outcome)
            for replica in fleet.replicas
            for served in replica.served
            if served.finished_s is not None and fleet.answers[served.number] is served
        ]
        self.times = {
            number: its.times(fleet.answers[number], fleet.prompts[number])
            for _, number, its in sorted(ended, key=lambda each: each[:2])
        }
        self.numbers, rows = list(self.times), list(self.times.values())
        self.samples_ns = {
            name: [round(spans[name] * _NS) for spans in rows if name in spans]
            for name in ("queueing", "ttft", "tpot", "latency")
        }

    def good(self, limits_s: Mapping[str, float]) -> list[int]:
        """Requests that kept every limit; a time that a request has not, it keeps."""
        return [
            number
            for number, spans in self.times.items()
            if all(spans.get(name, 0.0) <= limit_s for name, limit_s in limits_s.items())
        ]


def serve_point(
    point: Point[ReplayConfig], requests: Sequence[Request], on_progress: Callable[[int], None]
) -> Case:
    """Replay a point: by one server, or by a fleet where there is one; see ``Serve``."""
    if not point.config.fleet.exists:
        return run.serve_alone(point, requests, on_progress)
    fleet, problem = Fleet(point.config, requests), None
    with suppress(KeyboardInterrupt):
        for done in fleet.run():
            on_progress(done)
    fates = Fates(fleet)
    if fleet.ended and not fates.numbers:
        problem = (
            f"none of {len(fleet.requests):,} requests fits any replica: give more "
            "cache.memory_bytes or cache.num_blocks, or raise cache.max_context_tokens."
        )
    for replica in fleet.replicas if fleet.ended else ():
        cache = replica.replay.scheduler.cache
        if not problem and (held := abs(cache.private) + cache.shared):
            problem = f"{held} blocks of {replica.name} are still held although all have ended."
    return run.replayed_case(
        point,
        problem,
        interrupted=not fleet.ended,
        cache=run.describe_cache(fleet.replicas[0].replay),
        totals=_totals(fleet, fates),
        latencies=run.list_latencies(fates.samples_ns, [r.replay.times for r in fleet.replicas]),
        replay=describe_all(fleet, fates),
    )


def describe_all(fleet: Fleet, fates: Fates) -> parts.ReplayResult:
    replays = [replica.replay for replica in fleet.replicas]
    found = [  # what a tier that several share gave adds up for all together alone
        run.describe_replay(Replay(each.parts, each.requests, each.scheduler)) for each in replays
    ]
    computing = found[: len(fleet.pools[0])]
    summed = ("remainder_bytes", "rounding_bytes", "pauses", "evictions", "rejected")
    sums = {n: run.add_values(n, [getattr(each, n) for each in found]) for n in summed}
    return found[0].model_copy(
        update=sums
        | {
            "pools": add_pools([each.pools for each in found]),
            "constants": _all_constants(fleet),
            "reuse": run.add([r.reuse for r in computing], same=("shared_tokens",)),
            "work": run.add([each.work for each in found]),
            "arrived_ns": run.arrival_span_ns(fleet.config, fleet.requests),
            "mean_decoding": mean(r.mean_decoding for r in found[-len(fleet.pools[-1]) :]),
            "series": add_series([each.series for each in found], fleet.config.measure.points),
            "tiers": run.describe_tiers([each.tiers for each in replays if each.tiers]),
            "fleet": describe_fleet(fleet, fates),
        }
    )


def add_pools(replicas: Sequence[Sequence[parts.ReplayPool]]) -> list[parts.ReplayPool]:
    """The pools of all replicas by their names, a row for every size of a unit."""
    alike: dict[str, dict[int, list[parts.ReplayPool]]] = {}
    for pool in chain.from_iterable(replicas):
        alike.setdefault(pool.name, {}).setdefault(pool.unit_bytes, []).append(pool)
    found = []
    for pools in chain.from_iterable(sizes.values() for sizes in alike.values()):
        counts = [pool.units for pool in pools if pool.units is not None]
        bare = [pool.model_copy(update={"units": None}) for pool in pools]
        units = sum(counts) if len(counts) == len(pools) else None
        found.append(run.add(bare, same=("unit_bytes",)).model_copy(update={"units": units}))
    return found


def _all_constants(fleet: Fleet) -> list[parts.Constant]:
    """The first replica's constants, and those in which decode replicas differ."""
    rows = run.list_constants(fleet.replicas[0].replay)
    for replica in (pool[0] for pool in fleet.pools[1:]):
        others = [row for row in run.list_constants(replica.replay) if row not in rows]
        rows += [row.model_copy(update={"name": f"{replica.name}: {row.name}"}) for row in others]
    return rows


def add_series(series: Sequence[parts.ReplaySeries], points: int) -> parts.ReplaySeries:
    """What all held, at no more moments than ``points``: of each what it had held last."""
    # int64 would end after 292 years, and within 104 days these are exact
    times = np.unique(np.concatenate([np.array(each.at_ns, np.float64) for each in series]))
    if len(times) > points:
        times = times[np.linspace(0, len(times) - 1, points).astype(int)]
    names = parts.ReplaySeries.model_fields.keys() - {"at_ns"}
    sums = {name: np.zeros(len(times), np.int64) for name in names}
    for each in series:
        place = np.searchsorted(np.array(each.at_ns, np.float64), times, side="right")
        for name in names:
            sums[name] += np.array([0, *getattr(each, name)], np.int64)[place]
    return parts.ReplaySeries(
        at_ns=[int(t) for t in times], **{n: s.tolist() for n, s in sums.items()}
    )


def _totals(fleet: Fleet, fates: Fates) -> Totals:
    found = [run.describe_totals(each.replay, ended=fleet.ended) for each in fleet.replicas]
    total = run.add(found)
    return total.model_copy(
        update={
            "requests": len(fates.numbers),
            "input_tokens": sum(fleet.prompts[n].input_tokens for n in fates.numbers),
            "output_tokens": sum(fleet.answers[n].output_tokens for n in fates.numbers),
            "wall_ns": round(max(each.now_s for each in fleet.replicas) * _NS),
        }
    )


def describe_fleet(fleet: Fleet, fates: Fates) -> parts.ReplayFleet:
    section, computing = fleet.config.fleet, fleet.pools[0]
    replicas = [
        _describe_replica(fleet, replica, decodes=place >= len(computing))
        for place, replica in enumerate(fleet.replicas)
    ]
    memories = [replica.replay.memory for replica in computing]
    pooled_tokens = sum(memory.num_blocks * memory.block_tokens for memory in memories)
    tokens = min(replica.parts.shared_tokens for replica in computing)
    ideal = partial(ideal_saved_tokens, fleet.requests, tokens)
    return parts.ReplayFleet(
        router=section.router,
        decode_router=section.decode_router if section.is_split else None,
        replicas=replicas,
        prompt_tokens=sum(replica.prompt_tokens for replica in replicas[: len(computing)]),
        saved_tokens=sum(replica.saved_tokens for replica in replicas),
        pooled_saved_tokens=ideal(pooled_tokens // tokens),
        ideal_saved_tokens=ideal(),
        held_bytes=sum(replica.held_bytes for replica in replicas),
        repeated_bytes=repeated_bytes(fleet),
        slo={name: limit_s * _NS for name, limit_s in section.slo.limits_s.items()},
        good_requests=len(fates.good(section.slo.limits_s)),
        gpu_hour_price=section.gpu_hour_price,
    )


def _describe_replica(fleet: Fleet, replica: Replica, *, decodes: bool) -> parts.FleetReplica:
    scheduler, link, split = replica.replay.scheduler, replica.link, replica.config.fleet.is_split
    answers = [each for each in replica.served if fleet.answers[each.number] is each]
    tally, clock = replica.replay.prompts.tally, scheduler.clock
    return parts.FleetReplica(
        name=replica.name,
        role="decode" if decodes else "prefill" if split else "both",
        gpus=replica.config.cost.gpus,
        requests=len(replica.served),
        prompt_tokens=tally.prompt_tokens,
        saved_tokens=0 if decodes else tally.saved_tokens,
        computed_tokens=scheduler.computed_tokens,
        output_tokens=sum(each.output_tokens for each in answers if each.finished_s is not None),
        peak_requests=replica.replay.outcome.peak_requests,
        busy_ns=round((clock.now_s - clock.idle_s) * _NS),
        queued_ns=sum(replica.replay.outcome.samples_ns["queueing"]),
        held_bytes=len(held_blocks(replica)) * shared_bytes(replica),
        sent_bytes=link.moved_bytes,
        sending_waited_ns=round(link.waited_s * _NS),
        settings=replica.settings,
    )
