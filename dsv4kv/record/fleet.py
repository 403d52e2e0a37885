"""What a replay by several servers found, in the record's terms; times are virtual."""

from typing import Literal, Self

from pydantic import model_validator

from dsv4kv.record.part import Part


class FleetReplica(Part):
    """One server."""

    name: str
    """What it does, and which it is."""
    role: Literal["both", "prefill", "decode"]
    """Whether it computes prompts, decodes, or both."""
    gpus: int
    """GPUs that it has."""
    requests: int
    """Requests that it was given."""
    prompt_tokens: int
    """Tokens of their prompts; of a decode replica's, those that were sent to it."""
    saved_tokens: int
    """Of which it found cached; 0 for a decode replica, which computes none."""
    computed_tokens: int
    """Prompt tokens that it computed, again after a preemption included."""
    output_tokens: int
    """Tokens of answers that it gave; what a prefill replica samples after a prompt is none."""
    peak_requests: int
    """Most requests that held a slot at once."""
    busy_ns: int
    """Time in which it had steps to take."""
    queued_ns: int
    """Time that its requests waited for a slot, together."""
    held_bytes: int
    """Blocks of prompts that it has cached at the end."""
    settings: str = ""
    """In what it differs from the rest of the configuration; empty where in nothing."""
    sent_bytes: int = 0
    """Of prompts that it sent to decode replicas, by one rank; every rank sends as much."""
    sending_ns: int = 0
    """Time of sending."""
    sending_waited_ns: int = 0
    """Time for which prompts waited for others to be sent, together."""


class ReplayFleet(Part):
    """Several servers behind a router."""

    router: str
    """Who chose the replica that computed a prompt."""
    decode_router: str | None
    """Who chose the replica that decoded; null where the same one did."""
    replicas: list[FleetReplica]
    """Those that computed prompts first."""
    prompt_tokens: int
    """Tokens of all prompts that were served."""
    saved_tokens: int
    """Of which a replica found cached."""
    pooled_saved_tokens: int
    """What one pool with the blocks of all replicas would save, evicting the least recently used,
    one request at a time."""
    ideal_saved_tokens: int
    """What one pool would save that forgets nothing."""
    held_bytes: int
    """Blocks of prompts cached at the end, each replica's."""
    repeated_bytes: int
    """Of which a replica before it has the same."""
    slo: dict[str, float]
    """What a request had to keep to be good, in ns by the name of the time; empty without."""
    good_requests: int
    """Requests that kept it; all that were served where there was nothing to keep."""
    good_output_tokens: int
    """Tokens that those generated."""
    gpu_hour_price: float | None
    """Price of a GPU for an hour; null where none was given."""

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return sum(replica.gpus for replica in self.replicas)

    @property
    def imbalance(self) -> float | None:
        """Busy time of the busiest replica that computes prompts over the mean of those."""
        busy = [replica.busy_ns for replica in self.replicas if replica.role != "decode"]
        return max(busy) * len(busy) / sum(busy) if sum(busy) else None

    def gpu_hours(self, wall_ns: int) -> float:
        """GPUs times the time of the whole replay."""
        return self.gpus * wall_ns / 3.6e12

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        saved = sum(replica.saved_tokens for replica in self.replicas)
        if saved != self.saved_tokens:
            raise ValueError(
                f"replicas saved {saved:,} tokens, and the fleet {self.saved_tokens:,}"
            )
        held = sum(replica.held_bytes for replica in self.replicas)
        if held != self.held_bytes:
            raise ValueError(f"replicas hold {held:,} B, and the fleet {self.held_bytes:,}")
        return self
