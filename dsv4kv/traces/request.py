"""A request, as every trace format describes it and every scheduler sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a serving trace.

    Attributes:
        arrival_s: Arrival in seconds from the start of the trace.
        input_tokens: Prompt length in tokens, at least 1.
        output_tokens: Generated length in tokens, at least 0.
        prefix_hashes: One id per ``hash_block_tokens`` tokens of the prompt (the last may stand
            for a partial block), equal ids meaning equal tokens *and* equal history;
            empty where the trace has none. A tuple, or ``IdRuns`` where ids come in long runs.
        hash_block_tokens: Tokens one id stands for; 0 where the trace has none.
        session: Number of the conversation it is a turn of; None where the trace does not say.
        answer_s: How long its answer took when it was recorded; None likewise. Requests are equal
            whether it is known or not.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    prefix_hashes: Sequence[int] = ()
    hash_block_tokens: int = 0
    session: int | None = field(default=None, compare=False)
    answer_s: float | None = field(default=None, compare=False)

    @property
    def total_tokens(self) -> int:
        """Prompt and output together, in tokens."""
        return self.input_tokens + self.output_tokens
