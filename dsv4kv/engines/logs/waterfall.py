"""Two logs, and what makes the difference between their numbers.

One thing after the other is taken from the first log's configuration to the second's; each step
is what the number changes by. The order is fixed: a step's size depends on those before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dsv4kv.engines.contract import Deployment, Engine
from dsv4kv.engines.logs.explain import Explanation, explain_startup, shown_tokens
from dsv4kv.engines.logs.read import read_log
from dsv4kv.engines.logs.recovery import Recovery
from dsv4kv.units import format_bytes


@dataclass(frozen=True)
class Step:
    """One difference, and what it does to the number of tokens.

    Attributes:
        what: The difference: ``rules vllm:0.26 → vllm:0.33``.
        gain_tokens: Tokens more.
        tokens: The number after it.
        unit_bytes: Bytes of a block (full token) after it.
        units: Blocks after it.
        units_per_request: Blocks counted for one request after it.
    """

    what: str
    gain_tokens: int
    tokens: int
    unit_bytes: float
    units: int
    units_per_request: float


@dataclass(frozen=True)
class Waterfall:
    """From one log's number to the other's.

    Attributes:
        before: The first log.
        after: The second log.
        steps: The changes from one to the other; their gains add up to the difference exactly.
    """

    before: Explanation
    after: Explanation
    steps: tuple[Step, ...]

    @property
    def start_tokens(self) -> int:
        """The first log's number."""
        return _number(self.before)

    @property
    def end_tokens(self) -> int:
        """The second log's number."""
        return _number(self.after)


@dataclass(frozen=True)
class _State:
    """A configuration on the way."""

    engine: Engine
    deployment: Deployment
    memory: int


def compare_logs(before: Path, after: Path) -> Waterfall:
    """Explain two logs and the difference of their numbers; raises ``ConfigError``."""
    first, second = explain_startup(read_log(before)), explain_startup(read_log(after))
    return make_waterfall(first, second)


def make_waterfall(
    before: tuple[Explanation, Recovery], after: tuple[Explanation, Recovery]
) -> Waterfall:
    """Steps between two explained logs."""
    (first, start), (second, end) = before, after
    state, tokens = _state(start), _number(first)
    steps: list[Step] = []
    for what, changed in [("", state), *_path(start, end)]:
        reached = _shown(changed)
        if what or reached != tokens:
            label = what or f"not explained by the rules of {first.engine}"
            steps.append(_step(label, changed, reached - tokens, reached))
        state, tokens = changed, reached
    if tokens != _number(second):
        label = f"not explained by the rules of {second.engine}"
        steps.append(_step(label, state, _number(second) - tokens, _number(second)))
    return Waterfall(first, second, tuple(steps))


def _path(start: Recovery, end: Recovery) -> Iterator[tuple[str, _State]]:
    """Every difference with the configuration after it; what is the same gives no step."""
    now, goal = _state(start), _state(end)
    other = now.deployment.model.kind != goal.deployment.model.kind
    if now.engine.name != goal.engine.name:
        label = f"rules {now.engine.name} → {goal.engine.name}"
        now = replace(now, engine=goal.engine)
        if _family(start) != _family(end) or other:  # settings that mean nothing to the other
            now = replace(now, deployment=goal.deployment)
            label += ", with its settings"
        yield label, now
    for what, fields in _SETTINGS.items():
        with_it = _SETTINGS["formats"] if other and what == "model" else ()  # they are its own
        changed = {name: getattr(goal.deployment, name) for name in (*fields, *with_it)}
        deployment = replace(now.deployment, **changed)
        if deployment != now.deployment:
            old, new = (_setting_text(state.deployment, fields) for state in (now, goal))
            now = replace(now, deployment=deployment)
            yield f"{what} {old} → {new}", now
    if now.memory != goal.memory:
        old, new = format_bytes(now.memory), format_bytes(goal.memory)
        yield f"memory for the cache {old} → {new}", goal


_SETTINGS: dict[str, tuple[str, ...]] = {
    "model": ("model", "layers", "stage"),
    "formats": ("formats", "state_bytes", "online_state", "arch"),
    "draft layers": ("draft_layers", "draft_tokens"),
    "tokens of a block": ("block_tokens",),
    "window ratio": ("window_ratio",),
    "requests at once": ("concurrency",),
    "longest request": ("max_context_tokens",),
    "tokens in flight": ("in_flight_tokens", "overlap"),
    "prefixes kept": ("prefix_cache",),
    "windows of every request's own": ("replays_windows",),
}


def _setting_text(deployment: Deployment, fields: tuple[str, ...]) -> str:
    """The first field of a setting, as people call it."""
    value = getattr(deployment, fields[0])
    if fields[0] == "model":
        return deployment.model.name
    if fields[0] == "formats":
        entries = deployment.formats
        state = "bf16" if deployment.state_bytes == 2 else "fp32"
        return f"{entries.main.name}, {entries.indexer.name}, state {state}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "default" if value is None else f"{value:,}"


def _state(found: Recovery) -> _State:
    return _State(found.engine, found.deployment, found.available_bytes)


def _family(found: Recovery) -> str:
    return found.engine.name.partition(":")[0]


def _shown(state: _State) -> int:
    return shown_tokens(state.engine, state.deployment, state.memory)


def _step(what: str, state: _State, gain: int, tokens: int) -> Step:
    capacity = state.engine.capacity(state.deployment, state.memory)
    return Step(
        what=what,
        gain_tokens=gain,
        tokens=tokens,
        unit_bytes=float(capacity.unit_bytes),
        units=capacity.units,
        units_per_request=float(capacity.units_per_request),
    )


def _number(explanation: Explanation) -> int:
    """What was printed; for a refused start, what would have been."""
    printed = explanation.printed_tokens
    return explanation.shown_tokens if printed is None else printed
