"""What a rule or a strategy makes of a trace."""

from dataclasses import dataclass, fields, replace

import numpy as np

from dsv4kv.prefix.paths import Ints


@dataclass(frozen=True)
class Losses:
    """Tokens that an unbounded cache without rules would have hit, by what they were lost to.

    Attributes:
        evicted_block: Their block had been evicted.
        evicted_checkpoint: Their block was there; a checkpoint of window and state was too, once.
        no_checkpoint: Their block was there, and no checkpoint that far was ever written.
        draft: What a draft's layer needs after them is not what the cache has.
        alignment: They are no whole block, page or period of the rule.
        last_token: A hit must leave the last token of a prompt to be computed.
        replay: Computed again to have the window.
        collision_guard: Their hash was found with other tokens behind it.
    """

    evicted_block: int = 0
    evicted_checkpoint: int = 0
    no_checkpoint: int = 0
    draft: int = 0
    alignment: int = 0
    last_token: int = 0
    replay: int = 0
    collision_guard: int = 0

    @property
    def total(self) -> int:
        """All tokens lost."""
        return sum(getattr(self, reason.name) for reason in fields(self))


@dataclass(frozen=True)
class Outcome:
    """One way to reuse prefixes, on one trace, in a cache of one size.

    Attributes:
        name: The rule or strategy.
        resumed_tokens: int64[requests]: tokens of every prompt that need not be computed.
        input_tokens: Tokens of all prompts.
        losses: Where the rest of what an unbounded cache would have hit went.
        checkpoints: Checkpoints of window and state written; None where there are none to count.
        checkpoint_tokens: Window tokens written with them.
        checkpoint_reads: Checkpoints read to resume.
        unreachable_checkpoints: Those written inside the partial last block of a prompt, which
            never comes again.
        found_tokens: Tokens found in the compressed cache, all requests together.
        found_blocks: Blocks found there; None where blocks are not the curve's.
        rejected: Requests that can never run in a cache of this size; they hit and leave nothing.
        speculation: How drafts are made.
    """

    name: str
    resumed_tokens: Ints
    input_tokens: int
    losses: Losses
    found_tokens: int
    checkpoints: int | None = None
    checkpoint_tokens: int = 0
    checkpoint_reads: int = 0
    unreachable_checkpoints: int = 0
    found_blocks: int | None = None
    rejected: int = 0
    speculation: str = "none"

    @property
    def label(self) -> str:
        """The name, with how drafts are made."""
        return self.name if self.speculation == "none" else f"{self.name} {self.speculation}"

    def among(self, input_tokens: Ints, requests: Ints) -> "Outcome":
        """The same among all requests, by their tokens; all but ours are rejected."""
        resumed = np.zeros(len(input_tokens), np.int64)
        resumed[requests] = self.resumed_tokens
        return replace(
            self,
            resumed_tokens=resumed,
            input_tokens=int(input_tokens.sum()),
            rejected=self.rejected + len(input_tokens) - len(requests),
        )

    @property
    def hit_tokens(self) -> int:
        """Tokens that need not be computed, all requests together."""
        return int(self.resumed_tokens.sum())

    @property
    def hit_share(self) -> float:
        """The same as a share of all prompt tokens."""
        return self.hit_tokens / self.input_tokens

    @property
    def hit_requests(self) -> int:
        """Requests that resumed anywhere but at their start."""
        return int((self.resumed_tokens > 0).sum())

    @property
    def written_per_new_token(self) -> float:
        """Window tokens written for every token that the compressed cache did not have."""
        return self.checkpoint_tokens / max(1, self.input_tokens - self.found_tokens)
