"""The table of known faults: ``configs/faults/*.yaml``, a list of rows a file.

A row applies where all of its conditions hold. A condition is about one thing (a flag, a variable,
what a command means in our words, a field of a result, a line, the model, the GPU) and says what
of it; nothing of it is run. What is not known makes a condition neither true nor false.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from dsv4kv.engines.names import replayed_engines
from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped, shipped_names

if TYPE_CHECKING:
    from dsv4kv.diagnose.faults.subject import Subject

ANY_VERSION = "*"
_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda one, other: one >= other,
    "<=": lambda one, other: one <= other,
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    ">": lambda one, other: one > other,
    "<": lambda one, other: one < other,
}
_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+){0,3})")
_RELEASE = re.compile(r"v?(\d+(?:\.\d+){0,3})")
_PLACES = 4

Values = Sequence[str] | None
"""What is known of a thing: its values, none where it is not there; None where nobody said."""
Truth = bool | None
"""Whether a condition holds; None where that is not known."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Condition(_Row):
    """One condition: about exactly one thing, with at most one predicate.

    Attributes:
        flag: A flag of the engine, dashes or underscores; without a predicate: it is given.
        variable: A variable of the environment, likewise.
        input: What the command means in the words of ``dsv4kv budget``: ``host-tier``.
        field: A field of a result, or what follows from its fields (``results.py``).
        line: A regular expression that a line has.
        model: Presets, or families of them: ``v4``, ``v4.1``, ``v3.2``.
        gpu: What the GPU's kernels are compiled for: ``sm_90``.
        any: At least one of these holds.
        none: None of these holds.
        is_: The value is one of these.
        has: The value has one of these in it, in capitals or not.
        above: The value is a number above this.
        below: The value is a number below this.
        given: Whether it is given at all.
    """

    flag: str | None = None
    variable: str | None = None
    input: str | None = None
    field: str | None = None
    line: str | None = None
    model: Names | None = None
    gpu: Names | None = None
    any: "tuple[Condition, ...] | None" = None
    none: "tuple[Condition, ...] | None" = None
    is_: Names | None = Field(None, alias="is")
    has: Names | None = None
    above: float | None = None
    below: float | None = None
    given: bool | None = None

    @field_validator("line")
    @classmethod
    def _is_pattern(cls, text: str | None) -> str | None:
        try:
            re.compile(text or "")
        except re.error as error:
            raise ValueError(f"{text!r} is no regular expression: {error}") from None
        return text

    @model_validator(mode="after")
    def _is_one(self) -> "Condition":
        things = [name for name in _THINGS if getattr(self, name) is not None]
        predicates = [name for name in _PREDICATES if getattr(self, name) is not None]
        if len(things) != 1:
            raise ValueError(f"a condition is about one of {', '.join(_THINGS)}; has {things}")
        if len(predicates) > 1 or (predicates and things[0] not in _VALUED):
            raise ValueError(f"{things[0]} takes no {' with '.join(predicates)}")
        return self

    def holds(self, known: "Subject") -> Truth:
        """Whether it holds."""
        if self.any is not None:
            return some(each.holds(known) for each in self.any)
        if self.none is not None:
            return _not(some(each.holds(known) for each in self.none))
        if self.line is not None:
            return known.says(self.line)
        if self.model is not None:
            return known.model_is(self.model)
        if self.gpu is not None:
            return known.gpu_is(self.gpu)
        kind = next(name for name in _VALUED if getattr(self, name) is not None)
        values = known.values(kind, getattr(self, kind))
        return None if values is None else self._fits(values)

    def _fits(self, values: Sequence[str]) -> bool:
        if self.given is not None:
            return bool(values) == self.given
        if self.is_ is not None:
            return any(value.lower() in {one.lower() for one in self.is_} for value in values)
        if self.has is not None:
            return any(one.lower() in value.lower() for value in values for one in self.has)
        numbers = [number for value in values if (number := _number(value)) is not None]
        if self.above is not None:
            return any(number > self.above for number in numbers)
        if self.below is not None:
            return any(number < self.below for number in numbers)
        return bool(values)


_VALUED = ("flag", "variable", "input", "field")
_THINGS = (*_VALUED, "line", "model", "gpu", "any", "none")
_PREDICATES = ("is_", "has", "above", "below", "given")


class Fault(_Row):
    """One known fault.

    Attributes:
        id: Its name.
        engine: Whose; ``bench`` is a trap of benchmarks.
        versions: Releases that have it: clauses such as ``>=0.21``, all of which hold; ``*`` is
            any.
        fixed_in: The release that has it no more; None where there is none yet.
        when: Conditions, all of which hold.
        symptom: What is seen.
        effect: How much it costs, with its unit and where that was measured.
        workaround: What to do.
        source: The thread.
        seen: When that was last looked at.
        until: When it should be looked at again; a finding after that is only possible.
    """

    id: str = Field(pattern=r"[a-z0-9-]+")
    engine: str
    versions: str
    fixed_in: str | None = None
    when: tuple[Condition, ...] = Field(min_length=1)
    symptom: str = Field(min_length=10)
    effect: str = Field(min_length=3)
    workaround: str = Field(min_length=5)
    source: str = Field(pattern=r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")
    seen: date
    until: date

    @field_validator("engine")
    @classmethod
    def _is_known(cls, text: str) -> str:
        if text not in (known := (*replayed_engines(), "bench")):
            raise ValueError(f"engine: {text} is none of {', '.join(known)}")
        return text

    @field_validator("versions")
    @classmethod
    def _is_range(cls, text: str) -> str:
        list(_clauses(text))
        return text

    @property
    def thread(self) -> str:
        """The thread in short: ``vllm#51771``."""
        parts = self.source.split("/")
        return f"{parts[4]}#{parts[6]}"

    def covers(self, version: str | None) -> Truth:
        """Whether a release has it."""
        if self.versions == ANY_VERSION:
            return True
        if version is None:
            return None
        wanted = release(version)
        return all(_COMPARE[sign](wanted, other) for sign, other in _clauses(self.versions))


def release(version: str) -> tuple[int, ...]:
    """Numbers of a version, what follows on them left out; raises ``ConfigError``."""
    match = _RELEASE.match(version.strip())
    if match is None:
        raise ConfigError(f"{version[:60]!r} is no version: give one such as 0.33 or 0.5.23.")
    return _padded(match[1])


def _padded(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split(".")]
    return tuple(numbers + [0] * (_PLACES - len(numbers)))


def _clauses(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in text.split(",") if text != ANY_VERSION else ():
        match = _CLAUSE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text!r} is no range of versions: write >=0.21,<0.23 or *")
        yield match[1], _padded(match[2])


def some(truths: Iterable[Truth]) -> Truth:
    """Whether any is true; None where that depends on one that is not known."""
    found = list(truths)
    if True in found:
        return True
    return None if None in found else False


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_faults(text: str, source: str) -> list[Fault]:
    """Read rows; raises ``ConfigError`` with the row and what is wrong with it."""
    try:
        rows = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: this is no YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(rows, list):
        raise ConfigError(f"{source}: a list of faults is wanted.")
    found = []
    for number, row in enumerate(rows, 1):
        name = row.get("id", f"row {number}") if isinstance(row, dict) else f"row {number}"
        try:
            found.append(Fault.model_validate(row))
        except ValidationError as error:
            raise ConfigError(f"{source}, {name}: {_explain(error)}.") from None
    return found


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or "the row"
    if first["type"] == "extra_forbidden":
        of = Condition if "when" in first["loc"] else Fault
        known = (field.alias or key for key, field in of.model_fields.items())
        return f"{place} is no key: {', '.join(known)} are"
    return f"{place}: {first['msg'].removeprefix('Value error, ')}"


@cache
def load_faults() -> tuple[Fault, ...]:
    """All rows that are shipped, by file and in order."""
    folder = shipped("configs") / "faults"
    names = shipped_names("faults")
    return tuple(
        fault
        for name in names
        for fault in read_faults((folder / f"{name}.yaml").read_text("utf-8"), f"{name}.yaml")
    )


@dataclass(frozen=True)
class Finding:
    """A fault that a subject has, or may have.

    Attributes:
        fault: The row.
        subject: What has it.
        doubts: What is not known, in words; empty where it is sure.
    """

    fault: Fault
    subject: "Subject"
    doubts: tuple[str, ...]

    @property
    def is_sure(self) -> bool:
        """Whether nothing is in doubt."""
        return not self.doubts

    def as_values(self) -> dict[str, Any]:
        """As plain values."""
        row = self.fault.model_dump(mode="json", exclude={"when"})
        return {"of": self.subject.title, "sure": self.is_sure, "doubts": list(self.doubts)} | row


def judge(subjects: Sequence["Subject"], faults: Sequence[Fault], today: date) -> list[Finding]:
    """What is found of all subjects, what is sure first."""
    found = [each for subject in subjects for each in _judge_one(subject, faults, today)]
    return sorted(found, key=lambda each: not each.is_sure)


def _judge_one(subject: "Subject", faults: Sequence[Fault], today: date) -> Iterator[Finding]:
    for fault in faults:
        if fault.engine != subject.engine:
            continue
        covered = fault.covers(subject.version)
        held = [condition.holds(subject) for condition in fault.when]
        if covered is False or False in held:
            continue
        pairs = zip(held, fault.when, strict=True)
        unknown = [each for truth, each in pairs if truth is None]
        if all(map(_is_likely, unknown)):
            yield Finding(fault, subject, tuple(_doubts(fault, covered, unknown, today)))


def _is_likely(unknown: Condition) -> bool:
    """Whether a fault is shown although this is unknown: most set no variable, all have a GPU."""
    unset = unknown.variable is not None and unknown.given is False
    return unset or unknown.model is not None or unknown.gpu is not None


def _doubts(
    fault: Fault, covered: Truth, unknown: Sequence[Condition], today: date
) -> Iterator[str]:
    if covered is None:
        yield f"the version is not known: {fault.engine} {fault.versions} has it"
    if any(each.model for each in unknown):
        yield "the model is not known"
    if any(each.variable for each in unknown):
        yield "a log does not show the environment"
    if any(each.gpu for each in unknown):
        yield "the GPU is not known: add --gpu"
    if today > fault.until:
        yield f"{fault.thread} was last checked in {fault.seen:%Y-%m}"
