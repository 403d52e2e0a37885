"""vLLM's sizing rules by version.

The number that vLLM prints is no capacity: it is what a pool of blocks holds of requests of
``max_model_len``, each with its reserve for tokens in flight, times ``max_model_len``.
Source: vLLM 0.20.2 to 0.33.0; a refusal of 0.22 (vllm#44376), logs of 0.26 and 0.33.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.deployment import Deployment
from dsv4kv.sizing.engines.contract import Capacity, PoolCost
from dsv4kv.sizing.engines.held import layers_of
from dsv4kv.sizing.engines.vllm_costs import costs_of
from dsv4kv.sizing.engines.vllm_groups import Grouping, Packing, block_bytes, split_buckets
from dsv4kv.sizing.engines.vllm_lines import refusal_lines, size_lines
from dsv4kv.sizing.engines.vllm_pages import Group, build_buckets


@dataclass(frozen=True)
class Release:
    """Rules of a range of versions.

    Attributes:
        newest: The version they are called after.
        oldest: The first version that has them.
        grouping: How window groups are cut.
        packing: What makes the bytes of a block.
        weighted: A request's need is weighted by each group's bytes, against the full group's;
            otherwise its blocks are counted.
        batches_counted: Every batch that runs at once has its tokens in flight.
        one_line: Tokens and concurrency are logged in one line.
        null_block: The check at start keeps one block back.
        seen_in_logs: Compared with published start-up logs.
    """

    newest: str
    oldest: str
    grouping: Grouping = "tuples"
    packing: Packing = "slots"
    weighted: bool = True
    batches_counted: bool = True
    one_line: bool = False
    null_block: bool = False
    seen_in_logs: bool = False


@dataclass(frozen=True)
class Layout:
    """The blocks of one rank.

    Attributes:
        groups: Of the whole model.
        held: The same groups with this rank's layers only.
        unit_bytes: Bytes of one block.
    """

    groups: tuple[Group, ...]
    held: tuple[Group, ...]
    unit_bytes: int

    @property
    def weighed(self) -> list[Group]:
        """What vLLM weighs a request by: a group without a layer here as in the whole model."""
        pairs = zip(self.held, self.groups, strict=True)
        return [held if held.rows else group for held, group in pairs]

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks that a request really takes, over all groups."""
        return sum(group.blocks(tokens, in_flight_tokens) for group in self.groups)


@dataclass(frozen=True)
class VllmEngine:
    """One range of vLLM's versions."""

    release: Release

    @property
    def name(self) -> str:
        """As users write it."""
        return f"vllm:{self.release.newest}"

    @property
    def seen_in_logs(self) -> bool:
        """Whether published logs agree with the rules."""
        return self.release.seen_in_logs

    def layout(self, deployment: Deployment) -> Layout:
        """Groups and bytes of a block; raises ``ConfigError`` for what vLLM does not serve."""
        # neither context nor load decides the layout: searches ask for thousands of both
        key = replace(
            deployment, max_context_tokens=1, in_flight_tokens=1, concurrency=None, draft_tokens=0
        )
        return _lay_out(self.release, key)

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        """Every pool's share of the blocks that one request takes."""
        layout = self.layout(deployment)
        return costs_of(layout.held, layout.unit_bytes, deployment)

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        """Bytes of all blocks of a request; it can be more than vLLM counts up to 0.26."""
        layout = self.layout(deployment)
        return layout.unit_bytes * layout.blocks(tokens, in_flight)

    def shared_bytes(self, deployment: Deployment) -> int:
        """The block that stands for no block."""
        return self.layout(deployment).unit_bytes

    def blocks_counted(self, deployment: Deployment, tokens: int) -> int:
        """Blocks that vLLM counts for one request, its tokens in flight included."""
        layout, flight = self.layout(deployment), deployment.in_flight_tokens
        if not self.release.weighted:
            return layout.blocks(tokens, flight)
        weights = [group.page_bytes for group in layout.weighed]
        need = sum(
            group.blocks(tokens, flight) * weight
            for group, weight in zip(layout.groups, weights, strict=True)
        )
        return -(-need // weights[0])

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        """What vLLM makes of the memory, down to the line it logs."""
        layout, context = self.layout(deployment), deployment.max_context_tokens
        blocks = max(0, available_bytes) // layout.unit_bytes
        needed = self.blocks_counted(deployment, context)
        refused = self._refusal(deployment, available_bytes)
        concurrency = blocks / needed  # a float, as in vLLM: the line truncates its product
        printed = None if refused else int(concurrency * context)
        lines = refused or size_lines(
            available_bytes, printed or 0, context, concurrency, one_line=self.release.one_line
        )
        return Capacity(
            cache_bytes=blocks * layout.unit_bytes,
            units=blocks,
            unit_bytes=Fraction(layout.unit_bytes),
            units_per_request=Fraction(needed),
            printed_tokens=printed,
            concurrency=Fraction(blocks, needed),
            log_lines=lines,
        )

    def _refusal(self, deployment: Deployment, available_bytes: int) -> tuple[str, ...]:
        """The lines of a start that fails, or none."""
        context = deployment.max_context_tokens
        checked = available_bytes
        if self.release.null_block:
            checked -= self.layout(deployment).unit_bytes
        if checked > 0 and self.needed_bytes(deployment, context) <= checked:
            return ()
        fitting, refused = 0, context
        while refused - fitting > 1:
            middle = (fitting + refused) // 2
            if self.needed_bytes(deployment, middle) <= checked:
                fitting = middle
            else:
                refused = middle
        needed = self.needed_bytes(deployment, context)
        return refusal_lines(available_bytes, checked, needed, context, fitting)

    def needed_bytes(self, deployment: Deployment, tokens: int) -> int:
        """What the check at start asks for one request; not what the log counts with."""
        layout = self.layout(deployment)
        unit = (
            layout.unit_bytes
            if self.release.grouping == "patterns"
            else block_bytes(layout.weighed, "tuples", layout.groups[0])
        )
        return unit * layout.blocks(tokens, deployment.in_flight_tokens)


@lru_cache(maxsize=256)
def _lay_out(release: Release, deployment: Deployment) -> Layout:
    layers = layers_of(deployment, f"vllm:{release.newest}")
    buckets = build_buckets(deployment, layers)
    groups = split_buckets(buckets, release.grouping, pad=release.weighted)
    held = [group.on_this_rank() for group in groups]
    unit = block_bytes(held, release.packing, groups[0])
    if not unit:
        raise ConfigError("this rank holds no layer with a cache: give it at least one layer.")
    return Layout(tuple(groups), tuple(held), unit)


RELEASES: Sequence[Release] = (
    Release("0.22", "0.20", packing="tuples", batches_counted=False, seen_in_logs=True),
    Release("0.25", "0.23", batches_counted=False),
    Release("0.26", "0.26", seen_in_logs=True),
    Release("0.27", "0.27", packing="widest", weighted=False),
    Release("0.28", "0.28", packing="widest", weighted=False, one_line=True),
    Release(
        "0.33",
        "0.29",
        grouping="patterns",
        packing="widest",
        weighted=False,
        one_line=True,
        null_block=True,
        seen_in_logs=True,
    ),
)
V0_22, V0_25, V0_26, V0_27, V0_28, V0_33 = (VllmEngine(release) for release in RELEASES)
