"""What every engine's sizing rules answer, in exact integers and fractions of bytes."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from dsv4kv.sizing.deployment import Deployment


@dataclass(frozen=True)
class PoolCost:
    """What one kind of storage costs on one rank, over all layers of one type.

    Attributes:
        pool: ``main``, ``indexer``, ``window``, ``state`` or ``tables``.
        layer_type: ``swa``, ``csa``, ``hca``, ``dsa``, ``draft`` or ``all``.
        layers: Layers that have it.
        fixed_bytes: Of every request, whatever its length, in steady decode.
        in_flight_bytes: Reserved for every request on top, for the tokens in flight.
        marginal_bytes: Of every token of context, useful bytes only.
        padding_bytes: Of every token of context on top, lost to alignment of full pages.
        shared_bytes: Held once, however many requests run.
    """

    pool: str
    layer_type: str
    layers: int
    fixed_bytes: int = 0
    in_flight_bytes: int = 0
    marginal_bytes: Fraction = Fraction(0)
    padding_bytes: Fraction = Fraction(0)
    shared_bytes: int = 0


@dataclass(frozen=True)
class Capacity:
    """What an engine makes of the memory it is given.

    Attributes:
        cache_bytes: Bytes of the memory that become cache.
        units: Blocks (or, for SGLang, full tokens) that fit.
        unit_bytes: Bytes of one of them, over all layers.
        units_per_request: Of one request of ``max_context_tokens``, reserve included.
        printed_tokens: The number of tokens that the engine prints; None where it prints none.
        concurrency: Requests of ``max_context_tokens`` that fit at once, as the engine counts.
        log_lines: The lines the engine logs, word for word, without prefixes.
    """

    cache_bytes: int
    units: int
    unit_bytes: Fraction
    units_per_request: Fraction
    printed_tokens: int | None
    concurrency: Fraction
    log_lines: tuple[str, ...]


class Engine(Protocol):
    """The sizing rules of one version of one engine: pure functions of a deployment."""

    @property
    def name(self) -> str:
        """As users write it: ``vllm:0.33``."""

    @property
    def seen_in_logs(self) -> bool:
        """Whether the rules were checked against published start-up logs.

        Otherwise they are derived from the engine's source alone, and every answer says so.
        """

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        """Every pool's fixed, in-flight and marginal bytes; raises ``ConfigError``."""

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        """Bytes that a request of so many tokens takes out of the cache.

        Whole blocks and pages, with the reserve for ``in_flight`` tokens; monotone in both.
        """

    def shared_bytes(self, deployment: Deployment) -> int:
        """Bytes held once, before any request."""

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        """What fits into ``available_bytes`` of one rank; raises ``ConfigError``."""
