"""The table of known faults: ``configs/faults/*.yaml``, a list of rows a file.

A row applies where all of its conditions hold. A condition is about one thing (a flag, a variable,
what a command means in our words, a field of a result, a line, the model, the GPU) and says what
of it; nothing of it is run. What is not known makes a condition neither true nor false.
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import BaseModel, Field

from dsv4kv.engines.names import replayed_engines
from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped, shipped_names

if TYPE_CHECKING:
    from dsv4kv.diagnose.subjects import Subject

_COMPARE = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
    "<": operator.lt,
}  # fmt: skip
_CLAUSE = r"(>=|<=|==|!=|>|<)(\d+(?:\.\d+){0,3})"
_RELEASE = re.compile(r"v?(\d+(?:\.\d+){0,3})")
_PLACES = 4

Truth = bool | None  # whether a condition holds; None where that is not known
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Condition(BaseModel, extra="forbid", frozen=True):
    """One condition: about exactly one thing, with at most one predicate."""

    flag: str | None = None  # of the engine; without a predicate: it is given
    variable: str | None = None  # of the environment, likewise
    input: str | None = None  # what flags mean in the words of ``dsv4kv budget``: ``host-tier``
    field: str | None = None  # of a result, or what follows from its fields (``facts_of``)
    line: str | None = None  # A regular expression that a line has
    model: Names | None = None  # presets, or families of them: ``v4``, ``v4.1``, ``v3.2``
    gpu: Names | None = None  # what the GPU's kernels are compiled for: ``sm_90``
    any: "tuple[Condition, ...] | None" = None  # at least one of these holds
    none: "tuple[Condition, ...] | None" = None  # none of these holds
    is_: Names | None = Field(None, alias="is")  # the value is one of these
    has: Names | None = None  # the value has one of these in it, in capitals or not
    above: float | None = None  # the value is a number above this
    below: float | None = None  # the value is a number below this
    given: bool | None = None  # whether it is given at all

    def holds(self, subject: "Subject") -> Truth:
        """Whether it holds."""
        for group, wanted in ((self.any, True), (self.none, False)):
            if group is not None:
                truths = [each.holds(subject) for each in group]
                return wanted if True in truths else None if None in truths else not wanted
        if self.line is not None:
            return bool(re.search(self.line, subject.text, re.MULTILINE))
        if self.model is not None and subject.model is not None:
            return any(f"{subject.model}-".startswith(f"{name}-") for name in self.model)
        if self.gpu is not None and subject.arch is not None:
            return subject.arch in self.gpu
        for kind in ("flag", "variable", "input", "field"):
            name, given = getattr(self, kind), getattr(subject, f"{kind}s")
            if name is not None and given is not None:
                return self._fits(given, name)
        return None

    def _fits(self, given: Mapping[str, str], name: str) -> bool:
        value = given.get(plain(name) if self.flag else name)
        if value is None or self.given is not None:
            return (value is not None) == (self.given is not False)
        if self.is_ is not None:
            return value.lower() in {one.lower() for one in self.is_}
        if self.has is not None:
            return any(one.lower() in value.lower() for one in self.has)
        if self.above is None and self.below is None:
            return True
        try:
            number = float(value)
        except ValueError:
            return False
        return number > self.above if self.above is not None else number < (self.below or 0.0)


def known_engines() -> tuple[str, ...]:
    """What faults may be of: engines, and ``bench`` for results of a benchmark."""
    return (*replayed_engines(), "bench")


class Fault(BaseModel, extra="forbid", frozen=True):
    """One known fault."""

    id: str = Field(pattern=r"[a-z0-9-]+")  # its name
    engine: str  # whose; ``bench`` is a trap of benchmarks
    versions: str = Field(pattern=rf"^(\*|{_CLAUSE}(,{_CLAUSE})*)$")
    """Releases that have it: clauses such as ``>=0.21``, which must all hold; ``*`` is any."""
    fixed_in: str | None = None  # the release that has it no more; None where there is none yet
    when: tuple[Condition, ...] = Field(min_length=1)  # conditions, all of which hold
    symptom: str = Field(min_length=10)  # what is seen
    effect: str = Field(min_length=3)  # what it costs, with a unit and where it was measured
    workaround: str = Field(min_length=5)  # what to do
    # the thread
    source: str = Field(pattern=r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")
    seen: date  # when that was last looked at
    until: date  # when it should be looked at again; a finding after that is only possible

    @property
    def thread(self) -> str:
        """The thread in short: ``vllm#51771``."""
        parts = self.source.split("/")
        return f"{parts[4]}#{parts[6]}"

    @property
    def mended_by(self) -> str:
        """The flag that is missing, where the workaround is to give it; else empty."""
        missing = (each.flag for each in self.when if each.flag and each.given is False)
        return next((flag for flag in missing if self.workaround.startswith(flag)), "")

    def covers(self, version: str | None) -> Truth:
        """Whether a release has it."""
        if self.versions == "*":
            return True
        if version is None:
            return None
        wanted, clauses = release(version), re.findall(_CLAUSE, self.versions)
        return all(_COMPARE[sign](wanted, release(other)) for sign, other in clauses)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without any suffix; raises ``ConfigError``."""
    match = _RELEASE.match(version.strip())
    if match is None:
        raise ConfigError(f"{version[:60]!r} is no version: give one such as 0.33 or 0.5.23.")
    numbers = [int(part) for part in match[1].split(".")]
    return tuple(numbers + [0] * (_PLACES - len(numbers)))


def plain(name: str) -> str:
    """A flag with dashes for underscores."""
    return "--" + name.lstrip("-").replace("_", "-") if name.startswith("--") else name


@cache
def load_faults() -> tuple[Fault, ...]:
    """All rows that are shipped, by file and in order."""
    folder = shipped("configs") / "faults"
    texts = [(folder / f"{name}.yaml").read_text("utf-8") for name in shipped_names("faults")]
    return tuple(Fault.model_validate(row) for text in texts for row in yaml.safe_load(text))


@dataclass(frozen=True)
class Finding:
    """A fault that a subject has, or may have."""

    fault: Fault  # the row
    subject: "Subject"  # what has it
    doubts: tuple[str, ...]  # what is not known, in words; empty where it is sure

    @property
    def is_sure(self) -> bool:
        """Whether nothing is in doubt."""
        return not self.doubts

    def as_values(self) -> dict[str, Any]:
        """For JSON."""
        row = self.fault.model_dump(mode="json", exclude={"when"})
        return {"of": self.subject.title, "sure": self.is_sure, "doubts": list(self.doubts)} | row


def judge(subjects: Sequence["Subject"], faults: Sequence[Fault], today: date) -> list[Finding]:
    """What is found of all subjects, what is sure first."""
    found = []
    for subject, fault in product(subjects, faults):
        if fault.engine != subject.engine or (covered := fault.covers(subject.version)) is False:
            continue
        held = [condition.holds(subject) for condition in fault.when]
        unknown = [each for truth, each in zip(held, fault.when, strict=True) if truth is None]
        # shown although these are unknown: most set no variable, all have a model and a GPU
        is_likely = all(
            each.model or each.gpu or (each.variable and each.given is False) for each in unknown
        )
        if False not in held and is_likely:
            doubts = list(_doubts(unknown))
            if covered is None:
                version = f"{fault.engine} {fault.versions}"
                doubts.insert(0, f"the version is not known: {version} has it")
            if today > fault.until:
                doubts.append(f"{fault.thread} was last checked in {fault.seen:%Y-%m}")
            found.append(Finding(fault, subject, tuple(doubts)))
    return sorted(found, key=lambda each: not each.is_sure)


def _doubts(unknown: Sequence[Condition]) -> Iterator[str]:
    if any(each.model for each in unknown):
        yield "the model is not known"
    if any(each.variable for each in unknown):
        yield "a log does not show the environment"
    if any(each.gpu for each in unknown):
        yield "the GPU is not known: add --gpu"
