"""Times of steps that were measured: looked up between the nodes of a table."""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dsv4kv.choices import listed
from dsv4kv.config.replay import CostSection
from dsv4kv.core.linear import NOTHING, Counts, Stretch
from dsv4kv.errors import ConfigError, first_problem
from dsv4kv.files import read_json, shipped
from dsv4kv.replay.clock.coefficients import HeldOut
from dsv4kv.replay.clock.steps import Deployment

BEYOND = 1.5
"""How many times as far off a time may be that is outside its table, or has other drafts."""
_PS = 1e12
_MS = 1e-3
Node = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]  # ms: up to 11 days


class StepTable(BaseModel):
    """Times of one deployment; an axis grows, and a row has a time for each of its nodes."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    batch_per_rank: tuple[Node, ...]  # requests that decode on a rank
    decode_ms: dict[Node, tuple[Time, ...]]
    """Time of a step by the context of each, and by ``batch_per_rank``."""
    prefill_tokens: tuple[Node, ...]  # prompt tokens of a rank
    prefill_ms_by_prefix: dict[Node, tuple[Time, ...]]
    """Time of a chunk by the tokens before it, and by ``prefill_tokens``."""
    draft_tokens: int = 0  # drafts of a step, whose passes are in its time

    @model_validator(mode="after")
    def _is_a_grid(self) -> Self:
        for name, axis, rows in (
            ("decode_ms", self.batch_per_rank, self.decode_ms),
            ("prefill_ms_by_prefix", self.prefill_tokens, self.prefill_ms_by_prefix),
        ):
            lengths = {len(row) for row in rows.values()}
            if not rows or len(axis) < 2 or lengths != {len(axis)}:
                raise ValueError(f"{name} has rows of {sorted(lengths)} times for {len(axis)}")
            for nodes in (list(axis), list(rows)):
                if nodes != sorted(set(nodes)):
                    raise ValueError(f"the nodes of {name} do not grow: {nodes}")
        return self


class _Grid:
    """Seconds between nodes, linear in each direction; beyond the last, as between the last two.

    Attributes:
        reached: The place farthest outside that was asked for, by the name of the axis.
    """

    def __init__(
        self,
        columns: Sequence[int],
        rows: Mapping[int, Sequence[float]],
        names: tuple[str, str],
        factor: float,
    ) -> None:
        """``names`` of columns and rows; what is within ``factor`` before the first is known."""
        self._axes = [list(columns), list(rows)]
        self._seconds = [[ms * _MS for ms in row] for row in rows.values()]
        self._names, self.reached = names, dict[str, float]()
        by_column = list(map(list, zip(*self._seconds, strict=True)))
        lines = zip(self._axes, (by_column, self._seconds), strict=True)
        self._known_from = [_known_from(nodes, seconds, factor) for nodes, seconds in lines]

    def at(self, column: float, row: float) -> float:
        """Seconds at a place; notes one that is outside."""
        axes = zip(self._names, self._axes, self._known_from, (column, row), strict=True)
        for name, nodes, known_from, place in axes:
            if place > nodes[-1]:
                self.reached[name] = max(self.reached.get(name, place), place)
            elif place < known_from:
                self.reached.setdefault(name, place)
        columns, rows = self._axes
        before, weight = _between(columns, column)
        if len(rows) == 1:
            return _mean(self._seconds[0], before, weight)
        upper, share = _between(rows, row)
        low, high = (_mean(self._seconds[n], before, weight) for n in (upper, upper + 1))
        return low * (1 - share) + high * share

    @property
    def outside(self) -> list[str]:
        """What was asked for outside, as a phrase for each axis."""
        nodes = dict(zip(self._names, self._axes, strict=True))
        return [
            f"{place:,.0f} {name} (it has {nodes[name][0]:,.0f} to {nodes[name][-1]:,.0f})"
            for name, place in self.reached.items()
        ]


def _known_from(nodes: Sequence[int], seconds: Sequence[Sequence[float]], factor: float) -> float:
    """From where on the first times are within ``factor`` of going on as between the first two."""
    if len(nodes) == 1:
        return 0.0
    share, gap = 1 - 1 / factor, nodes[1] - nodes[0]
    pairs = [pair for pair in zip(seconds[0], seconds[1], strict=True) if pair[1] > pair[0]]
    return max([0.0, *(nodes[0] - low * share * gap / (high - low) for low, high in pairs)])


def _between(nodes: Sequence[int], place: float) -> tuple[int, float]:
    """The node before a place, and the share of the way to the next; never before 0."""
    before = min(max(bisect_right(nodes, place) - 1, 0), len(nodes) - 2)
    return before, max(0.0, (place - nodes[before]) / (nodes[before + 1] - nodes[before]))


def _mean(row: Sequence[float], before: int, weight: float) -> float:
    return row[before] * (1 - weight) + row[before + 1] * weight


class Factors(BaseModel):
    """What measured modules leave out of a step, and the error that is left."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decode: Time = 1.0  # time of a decode step, as a multiple of the table's
    prompt: Time = 1.0  # time of a prompt chunk, as a multiple
    client_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """From sending a request to its being scheduled, and back, in ms."""
    held_out: HeldOut  # the error on held-out points


class TableTimes:
    """Times looked up: the ``StepTimes`` and the ``Timer`` of a replay.

    What is left of the table counts as its first nodes.
    """

    def __init__(
        self, deployment: Deployment, table: StepTable, factors: Factors, source: str
    ) -> None:
        self._made, self._factors, self.layout = deployment, factors, deployment.layout
        known, decoding = factors.held_out, ("requests of a rank", "tokens of context")
        prompts = "prompt tokens of a rank", "tokens before a chunk"
        self._decode = _Grid(table.batch_per_rank, table.decode_ms, decoding, known.tpot)
        self._prompt = _Grid(table.prefill_tokens, table.prefill_ms_by_prefix, prompts, known.ttft)
        self._pass_s = min(min(row) for row in table.decode_ms.values()) * _MS
        self._drafts = table.draft_tokens
        self.source = source
        self.client_s = factors.client_ms * _MS
        self.copy_bytes_per_s = deployment.bytes_per_s * deployment.layout.gpus

    @property
    def timer(self) -> Self:
        """Itself."""
        return self

    @property
    def held_out(self) -> HeldOut:
        """Error of times; more once a step was beyond the table."""
        known = self._factors.held_out
        return known.widened(BEYOND) if self.extrapolated else known

    @property
    def extrapolated(self) -> list[str]:
        """What was timed outside of the table, as phrases."""
        drafts = self._made.draft_passes
        other = [f"{drafts} drafts (it has {self._drafts})"] if drafts != self._drafts else []
        return [*other, *self._decode.outside, *self._prompt.outside]

    def constants(self) -> list[tuple[str, float, str]]:
        """The numbers that times depend on: name, value, unit."""
        return [
            ("a decode step", self._factors.decode, "times the table's"),
            ("a prompt chunk", self._factors.prompt, "times the table's"),
        ]

    def step(
        self, rows: int, tokens: int, contexts: int, prompt: int, fullest: int, prefix: int
    ) -> Counts:
        """See ``Timer``; a chunk takes decoding requests through its own pass."""
        seconds = 0.0
        if rows:
            ranked = -(-rows // (self._made.layout.dp * self._made.layout.pp))
            seconds += self._factors.decode * self._decode.at(ranked, contexts / tokens)
        if prompt:
            seconds += self._factors.prompt * self._prompt.at(fullest, prefix / fullest)
        if rows and prompt:
            seconds -= self._factors.decode * self._pass_s
        return (*NOTHING[:-1], round(seconds * _PS))

    def seconds(self, counts: Counts) -> float:
        """See ``Timer``."""
        return counts[-1] / _PS

    def decode(self, counts: Counts, stretch: Stretch) -> tuple[int, Counts]:
        """See ``Timer``."""
        rows, contexts, steps, copies_s, idle_s, until_s = stretch
        *others, measured = counts
        taken, now_s = 0, 0.0
        while not taken or (taken < steps and now_s < until_s):
            measured += self.step(rows, rows, contexts, 0, 0, 0)[-1]
            contexts, taken = contexts + rows, taken + 1
            now_s = idle_s + (measured / _PS + copies_s)
        return taken, (*others, measured)


# ---- tables that are there ----------------------------------------------------------------------

_MOST_BYTES = 2**26
_SHIPPED = "sglang-0.5.14.json"


@cache
def _shipped_tables() -> dict[str, Any]:
    path = shipped("configs") / "steps" / _SHIPPED
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def shipped_factors() -> Factors:
    """What the shipped tables leave out; tables of other sources leave out the same."""
    return Factors(**_shipped_tables()["factors"])


def open_shipped(deployment: Deployment, model: str, gpu: str) -> TableTimes:
    """The shipped table of a deployment, of other drafts where there is none of its own.

    Raises:
        ConfigError: There is no table of the model, GPU and layout.
    """
    document, layout = _shipped_tables(), deployment.layout
    kind = "-fp8" if deployment.weights.expert_kind == "fp8" else ""
    place = f"{model}{kind} {gpu} tp{layout.tp * layout.dp} dp{layout.dp}"
    start, keys = f"{place} nextn", document["tables"]
    found = {int(key.removeprefix(start)): key for key in keys if key.startswith(start)}
    if not found or layout.pp > 1:
        names = listed(sorted({key.rsplit(" ", 1)[0] for key in keys}))
        raise ConfigError(
            f"cost.source is table and there is none of {place}, pp{layout.pp}: take {names} (tp "
            "counts the ranks of the experts, all are pp1), a table of your own as cost.table, "
            "or cost.source model."
        )
    drafts = min(found, key=lambda each: abs(each - deployment.draft_passes))
    table = StepTable(**document["tables"][found[drafts]], draft_tokens=drafts)
    note = "" if drafts == deployment.draft_passes else f", with {drafts} drafts"
    source = f"{document['source']}{note}"
    return TableTimes(deployment, table, shipped_factors(), source)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return first_problem(error.errors())
    return str(getattr(error, "strerror", None) or error)


def open_table(deployment: Deployment, model: str, gpu: str, cost: CostSection) -> TableTimes:
    """The user's table, or a shipped one; raises ``ConfigError``."""
    if cost.table is not None:
        return open_own(deployment, Path(cost.table))
    return open_shipped(deployment, model, gpu)


def open_own(deployment: Deployment, path: Path) -> TableTimes:
    """A table of the user's; raises ``ConfigError``."""
    try:
        document = read_json(path, _MOST_BYTES)
        table = StepTable(**document)
        given = document.get("factors")
        factors = Factors(**given) if given else shipped_factors()
    except (OSError, ValueError, TypeError, ValidationError) as error:
        raise ConfigError(
            f"cost.table: {path} is no table of steps ({_reason(error)}). It is a JSON object "
            "with batch_per_rank, decode_ms by context, prefill_tokens, prefill_ms_by_prefix and "
            "draft_tokens."
        ) from error
    return TableTimes(deployment, table, factors, f"as measured: {path}")
