"""A plain re-statement of the loop, a token at a time, gives the same times to the last digit."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.core.clock import Work
from dsv4kv.core.served import Served
from dsv4kv.replay.build import Replay, build_replay
from dsv4kv.replay.costs import StepTables
from tests.examples import examples
from tests.replay.scenes import random_requests, small_config


@dataclass
class Plain:
    """A request as the re-statement knows it."""

    number: int
    prompt: int
    output: int
    position: int = 0
    generated: int = 0
    first_s: float | None = None
    end_s: float | None = None


def serve_plainly(replay: Replay, concurrency: int, budget: int) -> list[Plain]:
    """Closed arrivals, no reuse, memory without end: admit, decode one token, fill up with chunks.

    Every table is read at one length at a time; time is the sum of all work so far.
    """
    rates = replay.parts.rates
    assert rates is not None
    longest = max(request.total_tokens for request in replay.requests)
    table, weights = (
        StepTables(replay.memory.model, replay.memory.schemas, longest),
        replay.parts.weights,
    )
    per_token = table.operations + 2 * weights.active_parameters
    reads = sum(table.reads.values()) + table.shared
    done = Work()

    def now() -> float:
        return (
            done.steps * rates.overhead_s
            + done.moved_bytes / rates.bytes_per_s
            + done.operations / rates.operations_per_s
        )

    todo = [Plain(i, r.input_tokens, r.output_tokens) for i, r in enumerate(replay.requests)]
    running: list[Plain] = []
    ended: list[Plain] = []
    while todo or running:
        while todo and len(running) < concurrency:
            running.append(todo.pop(0))
        tokens = updates = gathers = operations = 0
        decoding = [r for r in running if r.position >= r.prompt]
        for one in decoding:
            one.position += 1
            one.generated += 1
            tokens += 1
            updates += int(table.updates[one.position])
            gathers += int(reads[one.position])
            operations += int(per_token[one.position])
        answered = []
        for one in running:
            take = min(one.prompt - one.position, budget - tokens) if one not in decoding else 0
            if take > 0:
                after = one.position + take
                updates += replay.parts.tables.chunk_bytes(one.position, after)
                gathers += int(table.visible[after])
                operations += int(per_token[one.position + 1 : after + 1].sum())
                one.position, tokens = after, tokens + take
                if after == one.prompt:
                    answered.append(one)
        step = Work(
            1, weights.step_bytes(tokens), updates, gather_bytes=gathers, operations=operations
        )
        done = Work._make([*map(sum, zip(done[:-1], step[:-1], strict=True)), ()])
        for one in answered:
            one.first_s = now()
            one.generated = min(1, one.output)
        for one in [r for r in running if r.position >= r.prompt and r.generated >= r.output]:
            one.end_s = now()
            running.remove(one)
            ended.append(one)
    return ended


@examples(60)
@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(1, 6))
def test_a_plain_loop_without_reuse_gives_the_same_times(
    seed: int, count: int, concurrency: int
) -> None:
    config = small_config(
        cache__num_blocks=10_000,
        prefix__reuse=False,
        workload__arrivals="closed",
        workload__concurrency=concurrency,
        scheduler__step_tokens=300,
    )
    replay = build_replay(config, random_requests(seed, count))
    replay.scheduler.ended = ended = list[Served]()
    replay.scheduler.run()
    times = {one.number: (one.first_token_s, one.finished_s) for one in ended}
    plain = serve_plainly(replay, concurrency, 300)
    assert times == {one.number: (one.first_s, one.end_s) for one in plain}
