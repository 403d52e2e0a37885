"""Start-up lines of engines whose slots are allocated whole (llama.cpp, ds4)."""

from collections.abc import Iterator
from dataclasses import replace

from dsv4kv.engines.contract import MIB, Capacity, SlotEngine
from dsv4kv.engines.logs.read import Reading, StartupLog
from dsv4kv.engines.logs.recover import Recovery, possible_deployments
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError


def recover(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """The slots that a log names; where it prints buffers, those that have their bytes."""
    for found in nearest(log, reading):
        if _agrees(reading, found):
            yield replace(found, exact=True)


def nearest(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """The slots that a log names, whatever bytes it prints."""
    engine = find_engine(log.family)
    assert isinstance(engine, SlotEngine)
    given = {"step_tokens": reading.whole("ubatch")} if reading.whole("ubatch") else {}
    for base, agreeing in possible_deployments(log):
        one = replace(
            base,
            max_context_tokens=reading.whole("slot_context") or 1,
            concurrency=reading.whole("slots") or 1,
            in_flight_tokens=given.get("step_tokens") or engine.usual_step,
            cache_dtype=reading.fields.get("kv_type", "auto"),
            unified_slots=reading.fields.get("unified") == "true",
            draft_tokens=reading.whole("taken_back") or 0,
        )
        try:
            memory, slots = engine.shared_bytes(one), engine.slots(one)
        except ConfigError:  # not its type
            continue
        score = (agreeing, -one.draft_layers)
        yield Recovery(engine, one, memory, slots, (1, 1), score=score, exact=False)


def _agrees(reading: Reading, found: Recovery) -> bool:
    engine = found.engine
    assert isinstance(engine, SlotEngine)
    parts = engine.slot_parts(found.deployment, found.deployment.max_context_tokens)
    if session := reading.number("session_mib"):  # without states
        return abs((sum(parts.values()) - parts["states"]) / MIB - session) <= 0.006
    buffers = reading.number("buffers_mib")
    off = 0.006 * (reading.whole("buffers") or 0)
    return buffers is None or abs(found.available_bytes / MIB - buffers) <= off


def meaning(
    log: StartupLog, reading: Reading, found: Recovery, capacity: Capacity
) -> Iterator[str]:
    """What the slots are."""
    if buffers := reading.number("buffers_mib"):
        yield f"The printed buffers are {buffers:,.2f} MiB in all."
    if session := reading.number("session_mib"):
        yield f"The printed context buffers are {session:,.2f} MiB."
    if not (buffers or session or reading.fields.get("kv_type")):
        yield "Not certain: this log prints no cache type and no ubatch; the usual are assumed."
    if found.exact:
        yield capacity.note
