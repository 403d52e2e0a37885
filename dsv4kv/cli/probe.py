"""``dsv4kv probe``: what a running server's prefix cache does, found out by asking it."""

from dataclasses import asdict
from pathlib import Path
from secrets import randbits
from time import monotonic

import typer

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import INTERRUPTED, ConfigError, StoreUnavailable
from dsv4kv.units import parse_count, parse_seconds
from dsv4kv.view.console import say

FAULTY = 1
"""Exit code where a fault is found."""

EPILOG = examples(
    "dsv4kv probe http://localhost:8000                    what hits, from where, how much",
    "dsv4kv probe localhost:30000 --metrics localhost:30000/metrics --budget 20m",
    "dsv4kv probe http://localhost:8000 --html page.html --wait 60s",
)
_URL = (
    "A server of OpenAI's API: vLLM, SGLang or another. A key is taken from DSV4KV_API_KEY or "
    "OPENAI_API_KEY."
)
_RESET = "Flush the server's cache first (affects other users)."


def probe(
    url: str = opt.required(_URL, "URL"),
    model: opt.Text = opt.option(
        "Its name of the model.", "NAME", "--served-model-name", show_default="the first it serves"
    ),
    metrics: opt.Text = opt.option("Its metrics page, for hits and tiers.", "URL"),
    budget: str = opt.option("Max time: 90s, 5m, 1h.", "TIME", default="5m"),
    tokens: str = opt.option(
        "Max prompt tokens in total: 500K, 20M.", "COUNT", rare=True, default="4M"
    ),
    wait: opt.Text = opt.option("Re-check the prompt after this delay.", "TIME", rare=True),
    reset: bool = opt.flag("--reset", _RESET, rare=True),
    seed: int | None = opt.option("RNG seed.", show_default="random", rare=True),
    html: Path | None = opt.option(
        "Also write a page to show.", "PAGE.html", callback=opt.to_file
    ),
    as_json: bool = opt.AS_JSON,
) -> None:
    """Test a running server's prefix cache with prompts that it has never seen.

    Finds the smallest prefix that hits, the step of hits, what drafts cost, where branches hit,
    how much is held, whether tiers are read back and whether cached answers are right; or says
    why it cannot be known. Ends with 1 if a fault is found, 5 if the server stops answering.
    """
    from dsv4kv.diagnose.probe.client import OpenAiServer
    from dsv4kv.diagnose.probe.experiments import SHORT_TOKENS, Known, examine, fixed_tokens
    from dsv4kv.diagnose.probe.questioner import Ledger, Questioner
    from dsv4kv.view.checks import probe_page

    ledger = Ledger(parse_count(tokens), parse_seconds(budget))
    if ledger.most_tokens < 3 * SHORT_TOKENS or ledger.most_s < 1:
        raise ConfigError(
            f"--tokens {tokens} --budget {budget}: a prompt that is sent twice takes "
            f"{3 * SHORT_TOKENS:,} tokens and a second at least."
        )
    known = Known(reset=reset, wait_s=parse_seconds(wait) if wait else 0.0)
    rule_tokens = min(fixed_tokens(), ledger.most_tokens)
    spent = f"this asks for at most {ledger.most_tokens:,} tokens in {ledger.most_s:,.0f} s"
    if rule_tokens < ledger.most_tokens:
        spent += f": up to {rule_tokens:,} to learn the rule, the rest for the capacity"
    say(spent, err=True)
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
    document = {
        "model": server.model,
        "died": found.died,
        "interrupted": found.interrupted,
        "conclusions": [asdict(each) for each in found.conclusions],
        "spent": {"prompts": ledger.prompts, "tokens": ledger.tokens},
        "observed": [asdict(each) for each in questioner.observed],
    }
    opt.tell(page.parts(verbose=True), document, as_json=as_json)
    if html:
        opt.write_page(page.made_now(), html)
    if found.interrupted:
        say("interrupted: what was learned before is above.", err=True)
        raise typer.Exit(INTERRUPTED)
    if found.died:
        say(f"error: {found.died}; what was learned before is above.", err=True)
        raise typer.Exit(StoreUnavailable.exit_code)
    if any(each.level == "bad" for each in found.conclusions):
        raise typer.Exit(FAULTY)
