"""What ``bench transfer`` found: rates, costs of a descriptor, and whether it is right."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsv4kv.engines.host import Sent
from dsv4kv.measure.statistics import Estimate
from dsv4kv.tiers.wire.rows import Moved


@dataclass(frozen=True)
class Costs:
    """t = setup + descriptors x each + bytes / rate, from reads of two sizes of pages.

    Attributes:
        setup_ns: Of a read, whatever it reads.
        descriptor_ns: Of every stretch.
        byte_ns: Of every byte.
    """

    setup_ns: Estimate
    descriptor_ns: Estimate
    byte_ns: Estimate

    def time_ns(self, descriptors: int, size: int) -> float:
        """What a read takes by it."""
        each = descriptors * self.descriptor_ns.value + size * self.byte_ns.value
        return self.setup_ns.value + each


@dataclass(frozen=True)
class Run:
    """One transport.

    Attributes:
        transport: Its name.
        moved: What was read of every family, in all rounds' first.
        rates: GB/s of every family, of all (``all``), and of all unmerged (``unmerged``).
        memcpy: GB/s of one copy of as many bytes.
        raw: GB/s of as many bytes over a bare socket; None where there is none.
        costs: Of a read.
        at_end_ns: From asking for a prompt until it has come, read after its end.
        by_layer_ns: The same, read layer by layer while it is computed.
        copies: Further ranks that copied it on this machine.
        pages: Digests that were compared of the timed request.
        failures: What is wrong, in sentences.
    """

    transport: str
    moved: Mapping[str, Moved]
    rates: Mapping[str, Estimate | None]
    memcpy: Estimate | None
    raw: Estimate | None
    costs: Costs
    at_end_ns: int
    by_layer_ns: int
    copies: int
    pages: int
    failures: list[str] = field(default_factory=list)

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
    """All of it.

    Attributes:
        runs: Every transport's.
        engines: What an engine would send for this request; None where that is not known.
        skipped: Why a transport was left out, in sentences.
    """

    runs: list[Run]
    engines: Mapping[str, Sent | None]
    skipped: list[str]
