"""Times of steps that were measured: looked up between the nodes of a table."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dsv4kv.choices import listed
from dsv4kv.clock.coefficients import HeldOut
from dsv4kv.clock.steps import COUNTS, Deployment, Ints, Steps
from dsv4kv.core.clock import Counts
from dsv4kv.errors import ConfigError
from dsv4kv.files import read_json, shipped

BEYOND = 1.5
"""How many times as far off a time may be that is outside its table, or has other drafts."""
_PS = 1e12
_MS = 1e-3
Floats = NDArray[np.float64]
Node = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StepTable(BaseModel):
    """Times of one deployment; an axis grows, and a row has a time for each of its nodes."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    batch_per_rank: tuple[Node, ...]
    """Requests that decode on a rank."""
    decode_ms: dict[Node, tuple[Time, ...]]
    """Time of a step by the context of each, and by ``batch_per_rank``."""
    prefill_tokens: tuple[Node, ...]
    """Prompt tokens of a rank."""
    prefill_ms_by_prefix: dict[Node, tuple[Time, ...]]
    """Time of a chunk by the tokens before it, and by ``prefill_tokens``."""
    draft_tokens: int = 0
    """Drafts of a step, whose passes are in its time."""

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
    """Seconds between nodes, linear in each direction; beyond the last, as in the last stretch.

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
        self._columns = np.array(columns, dtype=float)
        self._rows = np.array(list(rows), dtype=float)
        self._seconds = np.array(list(rows.values())) * _MS
        self._names, self.reached = names, dict[str, float]()
        self._from = (
            _known_from(self._columns, self._seconds.T, factor),
            _known_from(self._rows, self._seconds, factor),
        )

    def at(self, column: float, rows: Floats) -> Floats:
        """Seconds at one place of the columns and several of the rows."""
        places, weight = _between(self._columns, np.array([column]))
        at_column = self._seconds[:, places] * (1 - weight) + self._seconds[:, places + 1] * weight
        if len(self._rows) == 1:
            return np.repeat(at_column[:1, 0], len(rows))
        places, weight = _between(self._rows, rows)
        found: Floats = at_column[places, 0] * (1 - weight) + at_column[places + 1, 0] * weight
        return found

    def look(self, column: float, rows: Floats) -> None:
        """Note what is outside of one place of the columns and several of the rows, which grow."""
        asked = ((column, column), (float(rows[0]), float(rows[-1])))
        axes = zip(self._names, (self._columns, self._rows), self._from, asked, strict=True)
        for name, nodes, known_from, (low, high) in axes:
            if high > nodes[-1]:
                self.reached[name] = max(self.reached.get(name, high), high)
            elif low < known_from:
                self.reached.setdefault(name, low)

    @property
    def outside(self) -> list[str]:
        """What was asked for outside, as a phrase for each axis."""
        nodes = dict(zip(self._names, (self._columns, self._rows), strict=True))
        return [
            f"{place:,.0f} {name} (it has {nodes[name][0]:,.0f} to {nodes[name][-1]:,.0f})"
            for name, place in self.reached.items()
        ]


def _known_from(nodes: Floats, seconds: Floats, factor: float) -> float:
    """From where on the first nodes are within ``factor`` of going on as in the first stretch."""
    if len(nodes) == 1:
        return 0.0
    slopes = (seconds[1] - seconds[0]) / (nodes[1] - nodes[0])
    room = seconds[0] * (1 - 1 / factor)
    return float((nodes[0] - room[slopes > 0] / slopes[slopes > 0]).max(initial=0.0))


def _between(nodes: Floats, places: Floats) -> tuple[Ints, Floats]:
    """The node before each place, and how far it is on the way to the next; never before 0."""
    before = np.clip(np.searchsorted(nodes, places, side="right") - 1, 0, len(nodes) - 2)
    weight = (places - nodes[before]) / (nodes[before + 1] - nodes[before])
    return before, np.maximum(weight, 0.0)


class Factors(BaseModel):
    """What measured modules leave out of a step, and the error that is left."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decode: Time = 1.0
    """A decode step takes so many times as long."""
    prompt: Time = 1.0
    """A prompt chunk does."""
    client_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """From sending a request to its being scheduled, and back, in ms."""
    held_out: HeldOut
    """The error on points left out."""


class TableTimes:
    """Times looked up; see ``StepTimes``. What is left of the table counts as its first nodes."""

    def __init__(
        self, deployment: Deployment, table: StepTable, factors: Factors, source: str
    ) -> None:
        self._made, self._factors = deployment, factors
        known = factors.held_out
        decoding, prompts = (
            ("requests of a rank", "tokens of context"),
            (
                "prompt tokens of a rank",
                "tokens before a chunk",
            ),
        )
        self._decode = _Grid(table.batch_per_rank, table.decode_ms, decoding, known.tpot)
        self._prompt = _Grid(table.prefill_tokens, table.prefill_ms_by_prefix, prompts, known.ttft)
        self._pass_s = min(min(row) for row in table.decode_ms.values()) * _MS
        self._drafts = table.draft_tokens
        self.source = source
        self.client_s = factors.client_ms * _MS
        self.copy_bytes_per_s = deployment.bytes_per_s * deployment.layout.gpus

    @property
    def held_out(self) -> HeldOut:
        """See ``StepTimes``; more once a step was beyond the table."""
        known = self._factors.held_out
        return known.widened(BEYOND) if self.extrapolated else known

    @property
    def extrapolated(self) -> list[str]:
        """See ``StepTimes``."""
        drafts = self._made.draft_passes
        other = [f"{drafts} drafts (it has {self._drafts})"] if drafts != self._drafts else []
        return [*other, *self._decode.outside, *self._prompt.outside]

    def constants(self) -> list[tuple[str, float, str]]:
        """See ``StepTimes``."""
        return [
            ("a decode step", self._factors.decode, "times the table's"),
            ("a prompt chunk", self._factors.prompt, "times the table's"),
        ]

    def count(self, steps: Steps) -> Ints:
        """See ``StepTimes``; a chunk takes decoding requests through its own pass."""
        counts = np.zeros((max(len(steps.contexts), len(steps.prefixes)), len(COUNTS)), np.int64)
        seconds = np.zeros(len(counts))
        if steps.rows:
            rows, contexts = self._made.rows_per_rank(steps.rows), steps.contexts / steps.tokens
            self._decode.look(rows, contexts)
            seconds += self._factors.decode * self._decode.at(rows, contexts)
        if steps.prompt:
            prefixes = steps.prefixes / steps.fullest
            self._prompt.look(steps.fullest, prefixes)
            seconds += self._factors.prompt * self._prompt.at(steps.fullest, prefixes)
        if steps.rows and steps.prompt:
            seconds -= self._factors.decode * self._pass_s
        counts[:, -1] = np.rint(seconds * _PS)
        return counts

    def step(
        self, rows: int, tokens: int, contexts: int, prompt: int, fullest: int, prefix: int
    ) -> Counts:
        """See ``StepTimes``."""
        each = np.array([tokens]), np.array([contexts]), prompt, fullest, np.array([prefix])
        (counts,) = self.count(Steps(rows, *each)).tolist()
        return tuple(counts)

    def seconds(self, counts: Counts) -> float:
        """See ``StepTimes``."""
        return counts[-1] / _PS


# ---- tables that are there ----------------------------------------------------------------------

_MOST_BYTES = 2**26
_SHIPPED = "sglang-0.5.14.json"


@cache
def _shipped_tables() -> dict[str, Any]:
    path = shipped("configs") / "steps" / _SHIPPED
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def shipped_factors() -> Factors:
    """What the shipped tables leave out; those of another source leave out the same."""
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
    """What is wrong, of several things the first."""
    if not isinstance(error, ValidationError):
        return str(getattr(error, "strerror", None) or error)
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


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
