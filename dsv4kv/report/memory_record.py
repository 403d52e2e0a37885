"""What a run held over time, in the record's terms: counts, and the bytes that go with them."""

from typing import Self

from pydantic import model_validator

from dsv4kv.report.part import Part


class HeldUnits(Part):
    """Something that requests take and give back, at every moment of the series."""

    name: str
    """``blocks`` (``csa blocks``, … with several tables), ``slots``, and where prefixes are
    shared ``cached blocks``, those of the blocks that the prefix index keeps, and
    ``checkpoints``."""
    units: int
    """How many there are; the others are free."""
    held: list[int]
    """How many were held."""


class HeldPool(Part):
    """A pool of the cache, filled as far as its units are held."""

    name: str
    """``main``, ``indexer``, ``window``, ``state`` or ``checkpoints``."""
    layer_type: str
    """Attention type of its layers, or ``all``."""
    unit: str
    """Name of the units it is counted in."""
    unit_bytes: int
    """Bytes of one unit, all its layers together."""


class MemorySeries(Part):
    """What was held while the workload was served.

    A point stands for ``stride_steps`` steps: it is the one of them with most blocks held, when
    drafts were taken back and requests that ended had not yet given theirs. So the most that was
    held after any step is among the points.
    """

    stride_steps: int
    """Steps that a point stands for."""
    at_ns: list[int]
    """When, from the first step on, checks left out; the first is 0 unless a later step of its
    stretch was fuller."""
    units: list[HeldUnits]
    """What was held."""
    pools: list[HeldPool]
    """What that is in bytes; block tables, which are always whole, are left out."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        lengths = {each.name: len(each.held) for each in self.units}
        if set(lengths.values()) - {len(self.at_ns)}:
            raise ValueError(f"{len(self.at_ns)} moments and series of {lengths}")
        if unknown := {pool.unit for pool in self.pools} - set(lengths):
            raise ValueError(f"pools are counted in {', '.join(sorted(unknown))}, which is absent")
        return self
