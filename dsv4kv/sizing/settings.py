"""A question's settings, all of them: as given, or as the engine takes them, with the reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from dsv4kv.engines.contract import Engine
from dsv4kv.engines.defaults import Default, Defaults, Machine
from dsv4kv.errors import ConfigError
from dsv4kv.sizing.inputs import Inputs


@dataclass(frozen=True)
class Settings:
    """What decides a deployment's sizes and is not its model, GPU or layout.

    Attributes:
        memory_fraction: Share of a GPU's memory that may be used.
        reserve: Bytes of it kept for activations, graphs and communication.
        step_tokens: Tokens of one step of one replica.
        overlap: Steps that overlap.
        in_flight_tokens: Tokens in flight on one replica.
        request_limit: Requests that one replica runs at once at most; None for any number.
        logits_limit: Bytes that the indexer's logits are cut to; None where they are not.
        frees_windows: Whether window slots that are out of the window are given back; None where
            an engine has no choice.
        replays_windows: Whether every request has windows of its own (SGLang's encoder replay).
        extra_slots: Requests that a decode side receives while others run.
        assumed: What was not given, by the name of the input.
    """

    memory_fraction: Fraction
    reserve: int
    step_tokens: int
    overlap: int
    in_flight_tokens: int
    request_limit: int | None
    logits_limit: int | None
    frees_windows: bool | None
    replays_windows: bool
    extra_slots: int
    assumed: Defaults


def settle(inputs: Inputs, engine: Engine, machine: Machine, replicas: int) -> Settings:
    """Complete the inputs by the engine's own defaults.

    SGLang is given the tokens of a step and the limit of requests for all replicas of a server,
    which are ranks of data-parallel attention; every vLLM replica has its own.

    Raises:
        ConfigError: Tokens in flight given twice.
    """
    if inputs.in_flight_tokens and (inputs.step_tokens or inputs.overlap):
        raise ConfigError(
            "--in-flight-tokens is the tokens of a step times the steps that overlap: give it, or "
            "those."
        )
    given = {name: value for name, value in vars(inputs).items() if value is not None}
    assumed = {
        name: default
        for name, default in engine.defaults(machine, given).items()
        if name not in given
    }
    shares = machine.dp if engine.shares_limits else 1
    assumed |= dict(_as_asked(inputs, assumed, replicas // shares))
    known = {name: default.value for name, default in assumed.items()} | given
    step, overlap = known["step_tokens"] // shares, known["overlap"]
    flight = step * overlap
    if inputs.in_flight_tokens:
        assumed.pop("step_tokens", None)
        flight = inputs.in_flight_tokens
        step = -(-flight // overlap)
    if inputs.kv_memory or inputs.kv_blocks:
        assumed.pop("memory_fraction", None)
    limit, slots = known.get("request_limit"), known.get("window_slots")
    return Settings(
        memory_fraction=known["memory_fraction"],
        reserve=known["reserve"],
        step_tokens=max(step, 1),
        overlap=overlap,
        in_flight_tokens=max(flight, 1),
        request_limit=None if limit is None else max(limit // shares, 1),
        logits_limit=known.get("logits_limit"),
        frees_windows=None if slots is None else slots != "kept",
        replays_windows=slots == "own",
        extra_slots=known.get("extra_slots", 0),
        assumed=assumed,
    )


def _as_asked(inputs: Inputs, assumed: Defaults, replicas: int) -> Iterator[tuple[str, Default]]:
    """A limit below the requests asked for is not what who asks will start."""
    limit, asked = assumed.get("request_limit"), -(-(inputs.concurrency or 0) // replicas)
    if limit and asked > limit.value:
        reason = f"as many as are asked for; {limit.value:,} is {limit.reason}"
        yield "request_limit", Default(asked, reason)
