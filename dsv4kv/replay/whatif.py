"""What the last minutes would have found with other settings, and what the present one loses.

Requests are replayed one after the other into an empty cache, so shares are of what these minutes
have in common; settings are compared with each other, not with what was there before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dsv4kv.budget.launch import Reading
from dsv4kv.engines.names import RULES, find_rule
from dsv4kv.errors import Dsv4kvError
from dsv4kv.record.convert import collect_requests
from dsv4kv.record.folder import Record
from dsv4kv.record.server import Server
from dsv4kv.replay.rules import Losses, Outcome, Pool, run_rule
from dsv4kv.replay.settings import open_pool, settings_of


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to set the server."""

    name: str  # what is written to have it
    hit_tokens: int  # prompt tokens found with it


@dataclass(frozen=True)
class WhatIf:
    """What settings find of the same requests."""

    rule: str = ""  # the present one
    prompt_tokens: int = 0  # of all requests
    present: Setting = Setting("", 0)  # what it finds
    # what it loses, of what was seen in these minutes
    losses: Losses = field(default_factory=Losses)
    others: tuple[Setting, ...] = ()  # other settings, the best first
    problem: str = ""  # why nothing could be replayed; empty if it could

    @property
    def better(self) -> Setting | None:
        """The best other setting, if it finds more."""
        best = next(iter(self.others), None)
        return best if best and best.hit_tokens > self.present.hit_tokens else None


@dataclass(frozen=True)
class Asked:
    """What the user says of the server: rule, model, launch command, other settings."""

    rule: str | None = None
    model: str | None = None
    command: Reading | None = None
    given: tuple[str, ...] = ()


def what_if(rows: Sequence[Record], server: Server, asked: Asked, folder: Path) -> WhatIf:
    """Replay requests with every setting; says why it cannot instead of raising."""
    try:
        recorded = collect_requests(rows, str(folder))
        if recorded is None or not any(r.hash_block_tokens for r in recorded.requests):
            return WhatIf(problem="no request with ids came in these minutes")
        known = list(settings_of(server, asked.command, None, asked.rule, asked.model))
        pool, rule = open_pool(recorded.requests, known, asked.given)
        present = run_rule(rule, pool)
        others = sorted(_others(rule, pool), key=lambda each: -each.hit_tokens)
    except Dsv4kvError as error:
        return WhatIf(problem=str(error))
    name = find_rule(rule).setting or rule
    tokens = pool.table.total_input_tokens
    return WhatIf(rule, tokens, _setting(name, present), present.losses, tuple(others))


def _others(rule: str, pool: Pool) -> Iterator[Setting]:
    """The engine's other rules for the model, and twice and four times the memory."""
    family, kind = rule.partition(":")[0], pool.model.kind
    for name, known in RULES.items():
        if name.partition(":")[0] == family and name != rule and kind in known.kinds:
            yield _setting(known.setting or name, run_rule(name, pool))
    for times in (2, 4):
        more = replace(pool, tokens=times * pool.tokens)
        yield _setting(f"{times} times the blocks", run_rule(rule, more))


def _setting(name: str, outcome: Outcome) -> Setting:
    return Setting(name, int(outcome.resumed_tokens.sum()))
