"""What a scheduler keeps to."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a scheduler keeps to.

    Attributes:
        step_tokens: Token budget of a step.
        max_requests: Requests that hold a slot.
        rule: ``prefix.rule``: by whose rule requests are preempted.
        paused_blocks: Blocks that paused requests may keep, by the toolkit's own.
        max_context_tokens: Longest request.
        defer: Let a request wait while another computes its prefix.
        longest_stretch: Most steps of a turn; None as many as nothing happens in.
    """

    step_tokens: int
    max_requests: int
    rule: str
    paused_blocks: int
    max_context_tokens: int
    defer: bool
    longest_stretch: int | None = None
