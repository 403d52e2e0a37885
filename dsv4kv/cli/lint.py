"""``dsv4kv lint``: known faults of a launch command, a start-up log or a benchmark's result."""

from datetime import date

import typer

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt

FOUND = 1
"""Exit code where a known fault is found for sure."""

EPILOG = examples(
    "dsv4kv lint serve.sh --engine vllm:0.22                 every command of a script",
    "dsv4kv lint startup.log                                 version and arguments from the log",
    "dsv4kv lint runs.jsonl                                  traps of benchmarks",
    "dsv4kv lint 'sglang serve --model DeepSeek-V4-Flash --hicache-size 100'",
)
_GIVEN = (
    "A launch command of vLLM or SGLang, a file with some (script, YAML, compose), the log of a "
    "start, or the result file of a benchmark."
)
_ENGINE = "Engine and version: vllm:0.33."


def lint(
    given: str = opt.required(_GIVEN, "COMMAND|LOG|RESULT"),
    engine: opt.Text = opt.option(_ENGINE, "NAME:VERSION", show_default="of the image or log"),
    gpu: opt.Text = opt.option(opt.GPU, "NAME", rare=True, show_default="of the log"),
    as_json: bool = opt.AS_JSON,
) -> None:
    """Find known faults of engines in commands and logs, and benchmark pitfalls.

    Looks the server up in a table of faults with their threads, versions and costs; nothing is
    run. What depends on something unknown, a version or a model, is possible. Ends with
    1 if a fault is found for sure.
    """
    from dsv4kv.diagnose.faults.subject import read_subjects
    from dsv4kv.diagnose.faults.table import judge, load_faults
    from dsv4kv.view.checks import report_findings

    subjects, faults = read_subjects(given, engine, gpu), load_faults()
    found = judge(subjects, faults, date.today())
    names = ("title", "engine", "version")
    document = {
        "looked_at": [{name: getattr(each, name) for name in names} for each in subjects],
        "known_faults": len(faults),
        "findings": [each.as_values() for each in found],
    }
    opt.tell(report_findings(subjects, found, len(faults)), document, as_json=as_json)
    if any(each.is_sure for each in found):
        raise typer.Exit(FOUND)
