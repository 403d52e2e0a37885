"""The rules by which engines reuse prefixes, by name.

Each is an exact replay of a trace whose requests are served one after the other and leave only
their prompts behind, and a cache for requests that run side by side.
"""

from dataclasses import replace

import numpy as np

from dsv4kv import choices
from dsv4kv.choices import choose, listed
from dsv4kv.engines.cache import Pool
from dsv4kv.engines.rule import Rule
from dsv4kv.engines.speculation import Speculation, find_speculation
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.prefix.outcome import Outcome

RULES: dict[str, Rule] = {name: row.load() for name, row in choices.RULES.items()}
"""All rules by name."""


def find_rule(name: str) -> Rule:
    """A rule by name; raises ``ConfigError`` with the names there are."""
    return choose(RULES, name, "a rule")


def find_drafts(rule: str, speculation: str) -> Speculation:
    """How a rule drafts, by names; raises ``ConfigError`` where its hits are not known."""
    found, known = find_speculation(speculation), find_rule(rule).speculations
    if speculation not in known:
        raise ConfigError(
            f"what {speculation} makes of hits is not known for the rule {rule}: take "
            f"{listed(known)}."
        )
    return found


def check_model(rule: str, model: DSV4Config) -> None:
    """Refuse a rule that is another generation's; raises ``ConfigError``."""
    if model.kind not in find_rule(rule).kinds:
        fitting = listed(name for name, known in RULES.items() if model.kind in known.kinds)
        raise ConfigError(f"the rule {rule} is not one of {model.name}: take {fitting}.")


def run_rule(name: str, pool: Pool) -> Outcome:
    """Serve a trace by a rule; requests that can never run are rejected.

    Raises:
        ConfigError: No such rule, blocks that do not fit the trace's, or a pool in which no
            request can run.
    """
    rule, tokens = find_rule(name), pool.table.input_tokens
    check_model(name, pool.model)
    fitting = np.flatnonzero(-(-tokens // pool.block_tokens) <= pool.blocks)
    if not len(fitting):
        raise ConfigError(
            f"a pool of {pool.tokens:,} tokens is smaller than every prompt, of "
            f"{int(tokens.min()):,} tokens and more: no request could run."
        )
    if len(fitting) == len(tokens):
        return replace(rule.replay(pool), name=name)
    outcome = rule.replay(replace(pool, table=pool.table.select(fitting)))
    return replace(outcome.among(tokens, fitting), name=name)
