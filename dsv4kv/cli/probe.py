"""``dsv4kv probe``: what a running server's prefix cache does, found out by asking it."""

from dataclasses import asdict
from pathlib import Path
from secrets import randbits
from time import monotonic
from typing import Annotated

import typer

from dsv4kv.cli import examples
from dsv4kv.cli.options import AsJson, Text, argument, flag, option, print_json, to_file
from dsv4kv.errors import INTERRUPTED, ConfigError, StoreUnavailable
from dsv4kv.units import parse_count, parse_seconds
from dsv4kv.view.console import say

FAULTY = 1
"""Exit code where a fault is found."""

EPILOG = examples(
    "dsv4kv probe http://localhost:8000                    what hits, from where, how much",
    "dsv4kv probe localhost:30000 --metrics localhost:30000/metrics --budget 20m --tokens 20M",
    "dsv4kv probe http://localhost:8000 --html page.html --wait 60s",
)
_URL = (
    "A server of OpenAI's API: vLLM, SGLang or another. A key is taken from DSV4KV_API_KEY or "
    "OPENAI_API_KEY."
)
_RESET = "Empty its cache (/flush_cache, /reset_prefix_cache): others lose it."


def probe(
    url: Annotated[str, argument(_URL, "URL")],
    model: Annotated[Text, option("Which model. Left out: the first it serves.", "NAME")] = None,
    metrics: Annotated[Text, option("Its page of metrics, for hits and tiers.", "URL")] = None,
    budget: Annotated[str, option("The most time: 90s, 5m, 1h.", "TIME")] = "5m",
    tokens: Annotated[str, option("The most tokens of all prompts: 500K, 20M.", "COUNT")] = "4M",
    wait: Annotated[
        Text, option("Also ask whether a prompt is there after so long.", "TIME", rare=True)
    ] = None,
    reset: Annotated[bool, flag("--reset", _RESET, rare=True)] = False,
    seed: Annotated[
        int | None, option("Of the random prompts. Left out: others every time.", rare=True)
    ] = None,
    html: Annotated[
        Path | None, option("Also write a page to show.", "PAGE.html", callback=to_file)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Examine a running server's prefix cache with prompts that it has never seen.

    Finds the smallest prefix that hits, the step of hits, what drafts cost, where branches hit,
    how much is held, whether tiers are read back and whether cached answers are right; or says
    why it cannot be known. Ends with 1 if a fault is found, 5 if the server stops answering.
    """
    from dsv4kv.diagnose.probe.client import OpenAiServer
    from dsv4kv.diagnose.probe.experiments import SHORT_TOKENS, Known, examine, fixed_tokens
    from dsv4kv.diagnose.probe.questioner import Ledger, Questioner
    from dsv4kv.view.html import write_page
    from dsv4kv.view.probe import probe_page
    from dsv4kv.view.render import show

    ledger = Ledger(parse_count(tokens), parse_seconds(budget))
    if ledger.most_tokens < 3 * SHORT_TOKENS or ledger.most_s < 1:
        raise ConfigError(
            f"--tokens {tokens} --budget {budget}: a prompt that is sent twice takes "
            f"{3 * SHORT_TOKENS:,} tokens and a second at least."
        )
    known = Known(reset=reset, wait_s=parse_seconds(wait) if wait else 0.0)
    rule_tokens = min(fixed_tokens(), ledger.most_tokens)
    say(
        f"this asks for at most {ledger.most_tokens:,} tokens in {ledger.most_s:,.0f} s: up to "
        f"{rule_tokens:,} to learn the rule, the rest for the capacity",
        err=True,
    )
    begun_s = monotonic()
    server = OpenAiServer(url, model, metrics, most_s=ledger.most_s)
    ledger.tokens = server.tokens
    if reset and not server.reset():
        say("the server does not let its cache be emptied; going on without", err=True)
    if metrics and server.counters() is None:
        say(f"--metrics {metrics} does not answer; going on without", err=True)
    questioner = Questioner(server, ledger, randbits(64) if seed is None else seed, begun_s)
    found = examine(questioner, known, lambda name: say(f"… {name}", err=True))
    page = probe_page(found, ledger)
    if as_json:
        print_json(
            {
                "model": server.model,
                "died": found.died,
                "interrupted": found.interrupted,
                "conclusions": [asdict(each) for each in found.conclusions],
                "spent": {"prompts": ledger.prompts, "tokens": ledger.tokens},
                "observed": [asdict(each) for each in questioner.observed],
            }
        )
    else:
        show(page.in_full())
    if html:
        write_page(page, html)
        say(f"page: {html}", err=True)
    if found.interrupted:
        say("interrupted: what was learned before is above.", err=True)
        raise typer.Exit(INTERRUPTED)
    if found.died:
        say(f"error: {found.died}; what was learned before is above.", err=True)
        raise typer.Exit(StoreUnavailable.exit_code)
    if any(each.level == "bad" for each in found.conclusions):
        raise typer.Exit(FAULTY)
