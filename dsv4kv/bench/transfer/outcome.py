"""What ``bench transfer`` found: bytes, rates and costs of every transport."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsv4kv.engines.host import Sent
from dsv4kv.runs.statistics import Estimate


@dataclass
class Moved:
    """What was read of one family."""

    pieces: int = 0  # descriptors before neighbours were merged
    descriptors: int = 0
    bytes: int = 0
    useful_bytes: int = 0  # of rows alone, without padding
    read_ns: int = 0

    def add(self, other: "Moved") -> None:
        """Sum up."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Costs:
    """t = setup + descriptors x each + bytes / rate, from reads of two sizes of pages."""

    setup_ns: Estimate  # of a read, whatever it reads
    descriptor_ns: Estimate  # of every stretch
    byte_ns: Estimate  # of every byte


@dataclass(frozen=True)
class Run:
    """One transport."""

    transport: str  # its name
    moved: Mapping[str, Moved]  # what was read of every family, in all rounds' first
    rates: Mapping[str, Estimate | None]
    """GB/s of every family, of all (``all``), and of all unmerged (``unmerged``)."""
    memcpy: Estimate | None  # GB/s of one copy of as many bytes
    raw: Estimate | None  # GB/s of as many bytes over a bare socket; None where there is none
    costs: Costs  # of a read
    at_end_ns: int  # from asking for a prompt until it has come, read after its end
    by_layer_ns: int  # the same, read layer by layer while it is computed
    copies: int  # further ranks that copied it on this machine
    pages: int  # digests that were compared of the timed request
    failures: list[str] = field(default_factory=list)  # what is wrong, in sentences

    @property
    def total(self) -> Moved:
        """Of all families."""
        total = Moved()
        for each in self.moved.values():
            total.add(each)
        return total

    @property
    def limit(self) -> Estimate | None:
        """What the bytes could be moved at: a bare socket's rate, or a copy's."""
        return self.raw or self.memcpy


@dataclass(frozen=True)
class Outcome:
    """All of it."""

    runs: list[Run]  # every transport's
    engines: Mapping[str, Sent | None]
    """What an engine would send for this request; None where that is not known."""
    skipped: list[str]  # why a transport was left out, in sentences
