"""What engines' own publishers sent, recorded and replayed, hits what their managers answered."""

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.engines.names import find_rule
from dsv4kv.model.presets import load_model
from dsv4kv.record import Veil
from dsv4kv.record.convert import find_stores, read_recording
from dsv4kv.record.events import Publisher, Sequence
from dsv4kv.record.folder import Recording, read_stream
from dsv4kv.record.logs import RequestLog
from dsv4kv.record.server import read_server
from dsv4kv.replay.against import Paced, spans_of
from dsv4kv.replay.rules import Pool, run_rule
from dsv4kv.traces.paths import collect_paths
from tests.engines.oracles.published import RULES, SEEDS, Workload, read_published
from tests.record.sockets import publishing, wait_until
from tests.record.test_events import listening

MODEL = load_model("v4-flash")
EVERY = [(engine, rule) for engine, rules in RULES.items() for rule in rules]


def workloads(engine: str, rule: str) -> list[Workload]:
    found = [workload for workload in read_published(engine) if workload.rule == rule]
    assert len(found) == SEEDS
    return found


def log_lines(engine: str, workload: Workload) -> Iterable[str]:
    """What the engine's request logger writes of the prompts, one second apart."""
    for number in range(len(workload.prompts)):
        tokens = workload.tokens(number)
        if engine == "vllm":
            yield (
                f"(APIServer pid=1) DEBUG 11-01 00:00:{number:02} [request_logger.py:56] Request "
                f"r{number} details: prompt: None, prompt_token_ids: {tokens}, prompt_embeds "
                "shape: None."
            )
            continue
        at = f"2026-11-01T00:00:{number:02}"
        row = {"rid": f"r{number}", "obj": {"input_ids": tokens}}
        yield json.dumps({"timestamp": at, "event": "request.received"} | row)


def record(folder: Path, engine: str, workload: Workload) -> Path:
    """Record a workload's messages and its log of requests."""
    folder.mkdir()
    (folder / "log").write_text("".join(line + "\n" for line in log_lines(engine, workload)))
    with Recording(folder / "recording") as recording:
        veil = Veil(recording.salt, min(workload.page, 64))
        publisher, sequence = Publisher(0, recording, veil), Sequence()
        for message in workload.frames:
            publisher.write(sequence.take(message))
        log = RequestLog(0, folder / "log", recording, veil, follow=False)
        log.run(threading.Event())
    return folder / "recording"


def replayed(folder: Path, workload: Workload) -> list[int]:
    """What the rule hits of what was recorded, request by request."""
    table = collect_paths(read_recording(folder).requests)
    tokens, chunk = workload.pages * workload.page, workload.chunk_tokens
    outcome = run_rule(workload.rule, Pool(table, tokens, workload.page, MODEL, chunk))
    hits: list[int] = outcome.resumed_tokens.tolist()
    return hits


@pytest.mark.parametrize(("engine", "rule"), EVERY)
def test_a_replay_hits_what_the_manager_did(engine: str, rule: str, tmp_path: Path) -> None:
    for number, workload in enumerate(workloads(engine, rule)):
        folder = record(tmp_path / str(number), engine, workload)
        assert replayed(folder, workload) == workload.hits
        # blocks that are cached in part are no prompts of their own
        stores = find_stores(read_stream(folder, "events"))
        assert {store.end.tokens % workload.page for store in stores} == {0}


@pytest.mark.parametrize(("engine", "rule"), EVERY)
def test_a_replay_evicts_what_was_announced(engine: str, rule: str, tmp_path: Path) -> None:
    compared = 0
    for number, workload in enumerate(workloads(engine, rule)):
        folder = record(tmp_path / str(number), engine, workload)
        recorded, server = read_recording(folder), read_server(folder)
        tokens, chunk = workload.pages * workload.page, workload.chunk_tokens
        pool = Pool(collect_paths(recorded.requests), tokens, workload.page, MODEL, chunk)
        played = Paced(pool, find_rule(rule), spans_of(recorded), at_once=True).run()
        if played.rejected:  # a pool that barely holds one prompt with its windows
            continue
        compared += 1
        assert played.hits == workload.hits
        assert server.evicted is not None
        assert sum(count for _, count in server.evicted) == sum(n for _, n in played.evicted)
    assert compared


@pytest.mark.parametrize(
    ("rule", "told"),
    [("vllm", {"block_size": "16"}), ("vllm-v4:4096", {}), ("vllm-v4:dense", {"block_size": "4"})],
)
def test_to_the_engine_nothing_differs(rule: str, told: dict[str, str], tmp_path: Path) -> None:
    workload = workloads("vllm", rule)[2]
    folder = record(tmp_path / "one", "vllm", workload)
    asked = sum(tokens for tokens, _ in workload.prompts)
    with Recording(folder) as recording:
        note = {"what": "server", "source": "metrics:0"}
        blocks = {"num_gpu_blocks": str(workload.pages + 1)}
        recording.write("notes", note | {"settings": told | blocks})
        for share in (0, 1):
            values = {"vllm:prefix_cache_queries_total": share * asked}
            values |= {"vllm:prefix_cache_hits_total": share * sum(workload.hits)}
            recording.write("metrics", {"source": "metrics:0", "values": values})
    step = ("--set", f"scheduler.step_tokens={workload.chunk_tokens}")
    done = run("replay", folder, "--against", "--rule", rule, *step, "--json", "-")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    server, replayed = found["total"]["server"], found["total"]["replay"]
    assert server["hit_tokens"] == replayed["hit_tokens"] == sum(workload.hits) > 0
    assert server["evicted"] == replayed["evicted"]
    assert found["difference_tokens"] == found["unexplained_tokens"] == 0


def leave_out(whole: list[tuple[int, int]], part: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of a list without another that it has in this order."""
    left, wanted = [], iter([*part, None])
    one = next(wanted)
    for each in whole:
        if each == one:
            one = next(wanted)
        else:
            left.append(each)
    assert one is None
    return left


@pytest.mark.parametrize("engine", RULES)
def test_events_alone_tell_what_was_cached_of_prompts_that_are_computed_at_once(
    engine: str, tmp_path: Path
) -> None:
    """But of those that add nothing, or one block alone, which looks like what is generated."""
    for number, workload in enumerate(workloads(engine, engine)):
        size, prompts = workload.page, [tokens for tokens, _ in workload.prompts]
        if engine == "vllm" and max(prompts) > workload.chunk_tokens:
            continue
        folder = record(tmp_path / str(number), engine, workload)
        stores = find_stores(read_stream(folder, "events"))
        whole = [tokens // size * size for tokens in prompts]
        told = [pair for pair in zip(whole, workload.hits, strict=True) if pair[0] - pair[1]]
        found = [(store.end.tokens, store.cached_tokens) for store in stores]
        skipped = leave_out(told, found)
        assert all(tokens - cached == size for tokens, cached in skipped)


@pytest.mark.parametrize(
    ("engine", "rule"), [("vllm", "vllm-v4:dense"), ("sglang", "sglang-v4:tail")]
)
def test_from_a_socket_through_the_commands_hits_are_those_of_the_manager(
    engine: str, rule: str, tmp_path: Path
) -> None:
    workload = workloads(engine, rule)[3]
    folder, trace = tmp_path / "recording", tmp_path / "trace.jsonl"
    with publishing() as server, listening(folder, server) as heard:
        for message in workload.frames:
            server.send(message)
        wait_until(lambda: len(heard) == len(workload.frames))
    (tmp_path / "log").write_text("\n".join(log_lines(engine, workload)))
    assert run("record", folder, "--requests", tmp_path / "log", "--once").exit_code == 0
    assert run("trace", "convert", folder, trace).exit_code == 0
    pool = ("--set", "cache.memory_bytes=null", "--set", f"cache.num_blocks={workload.pages}")
    pace = ("--set", "workload.arrivals=closed", "--set", "workload.concurrency=1")
    step = ("--set", f"scheduler.step_tokens={workload.chunk_tokens}")
    steps = ("--set", "scheduler.max_requests=1", *step)
    named = ("--rule", rule, "--model", "v4-flash", "--out", tmp_path)
    done = run("replay", trace, *named, *pool, *pace, *steps, "--json", "-")
    assert done.exit_code == 0, done.output
    (case,) = json.loads(done.stdout)["cases"]
    assert case["replay"]["reuse"]["saved_tokens"] == sum(workload.hits) > 0


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])
