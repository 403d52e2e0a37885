"""Which of the known faults a server or a benchmark has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from dsv4kv.diagnose.faults.subject import Subject
from dsv4kv.diagnose.faults.table import Condition, Fault, Truth


@dataclass(frozen=True)
class Finding:
    """A fault that a subject has, or may have.

    Attributes:
        fault: The row.
        subject: What has it.
        doubts: What is not known, in words; empty where it is sure.
    """

    fault: Fault
    subject: Subject
    doubts: tuple[str, ...]

    @property
    def is_sure(self) -> bool:
        """Whether nothing is in doubt."""
        return not self.doubts

    def as_values(self) -> dict[str, Any]:
        """As plain values."""
        row = self.fault.model_dump(mode="json", exclude={"when"})
        return {"of": self.subject.title, "sure": self.is_sure, "doubts": list(self.doubts)} | row


def judge(subjects: Sequence[Subject], faults: Sequence[Fault], today: date) -> list[Finding]:
    """What is found of all subjects, what is sure first."""
    found = [each for subject in subjects for each in _judge_one(subject, faults, today)]
    return sorted(found, key=lambda each: not each.is_sure)


def _judge_one(subject: Subject, faults: Sequence[Fault], today: date) -> Iterator[Finding]:
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
