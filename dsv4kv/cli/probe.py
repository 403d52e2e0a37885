"""``dsv4kv probe``: what a running server's prefix cache does, found out by asking it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4kv.cli.targets import to_file
from dsv4kv.view.console import print_document, say

if TYPE_CHECKING:
    from dsv4kv.probe.experiments import Examination
    from dsv4kv.probe.questioner import Questioner

FAULTY = 1
"""Exit code where a fault is found."""

EPILOG = """\
[bold]Examples[/bold]

dsv4kv probe http://localhost:8000                    what hits, from where, how much

dsv4kv probe localhost:30000 --metrics localhost:30000/metrics --budget 20m --tokens 20M

dsv4kv probe http://localhost:8000 --html page.html --wait 60s
"""


def probe(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="A server of OpenAI's API: vLLM, SGLang or another. A key is taken from "
            "DSV4KV_API_KEY or OPENAI_API_KEY.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which model. Left out: the first that it serves."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="URL", help="Its page of metrics, for hits and tiers.")
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="The most time: 90s, 5m, 1h.")
    ] = "5m",
    tokens: Annotated[
        str, typer.Option(metavar="COUNT", help="The most tokens of all prompts: 500K, 20M.")
    ] = "4M",
    wait: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Also ask whether a prompt is there after so long."),
    ] = None,
    reset: Annotated[
        bool,
        typer.Option(
            "--reset", help="Empty its cache (/flush_cache, /reset_prefix_cache): others lose it."
        ),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Of the random prompts. Left out: others every time."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.html", help="Also write a page to show.", callback=to_file),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Examine a running server's prefix cache with prompts that it has never seen.

    Finds the smallest prefix that hits, the step of hits, what drafts cost, where branches hit,
    how much is held, whether tiers are read back and whether cached answers are right; or says
    why it cannot be known. Ends with 1 if a fault is found, 5 if the server stops answering.
    """
    from secrets import randbits
    from time import monotonic

    from dsv4kv.errors import INTERRUPTED, ConfigError, StoreUnavailable
    from dsv4kv.probe.client import OpenAiServer
    from dsv4kv.probe.conclusions import Known
    from dsv4kv.probe.experiments import SHORT_TOKENS, examine, fixed_tokens
    from dsv4kv.probe.questioner import Ledger, Questioner
    from dsv4kv.units import parse_count, parse_seconds

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
    _show(found, questioner, server.model, html, as_json=as_json)
    if found.interrupted:
        say("interrupted: what was learned before is above.", err=True)
        raise typer.Exit(INTERRUPTED)
    if found.died:
        say(f"error: {found.died}; what was learned before is above.", err=True)
        raise typer.Exit(StoreUnavailable.exit_code)
    if any(each.level == "bad" for each in found.conclusions):
        raise typer.Exit(FAULTY)


def _show(
    found: "Examination", asked: "Questioner", model: str, html: Path | None, *, as_json: bool
) -> None:
    """Print what was found, and write it where that is asked for."""
    from dsv4kv.view.probe import probe_page

    page = probe_page(found, asked.ledger)
    if as_json:
        import json
        from dataclasses import asdict

        document = {
            "model": model,
            "died": found.died,
            "interrupted": found.interrupted,
            "conclusions": [asdict(each) for each in found.conclusions],
            "spent": {"prompts": asked.ledger.prompts, "tokens": asked.ledger.tokens},
            "observed": [asdict(each) for each in asked.observed],
        }
        print_document(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        from dsv4kv.view.render import show

        show(page.in_full())
    if html:
        from dsv4kv.view.html import write_page

        write_page(page, html)
        say(f"page: {html}", err=True)
