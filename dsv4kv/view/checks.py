"""Verdicts of ``doctor``, ``conform``, ``lint`` and ``probe``, the answer first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dsv4kv.diagnose.faults import known_engines
from dsv4kv.units import counted
from dsv4kv.view.table import ABSENT, Columns, Finding, Level, Page, Part, Table, Text, mark

if TYPE_CHECKING:
    from dsv4kv.diagnose.conform import Verdict
    from dsv4kv.diagnose.doctor import Check
    from dsv4kv.diagnose.faults import Finding as Found
    from dsv4kv.diagnose.gpu import GpuReport
    from dsv4kv.diagnose.probe import Conclusion, Examination
    from dsv4kv.diagnose.questioner import Ledger
    from dsv4kv.diagnose.subjects import Subject

_LEVELS: dict[str, Level] = {
    "good": "good",
    "note": "note",
    "missing": "missing",
    "undecided": "missing",
    "broken": "bad",
    "bad": "bad",
}


def report_checks(checks: "Sequence[Check]", *, verbose: bool) -> Iterator[Part]:
    """Whether a bench can run, what to do, and what is not good; or a table for each topic."""
    count = Counter(check.status for check in checks)
    counts = ", ".join(
        counted(count[each], each) if each == "note" else f"{count[each]} {each}"
        for each in ("good", "note", "missing", "broken")
        if count[each]
    )
    can = "cannot" if count["broken"] else "can"
    level: Level = "bad" if count["broken"] else "good"
    yield Finding(level, f"dsv4kv bench {can} run here: of {len(checks)} checks {counts}")
    for check in checks:
        if check.advice:
            problem: Level = "bad" if check.status == "broken" else "warning"
            yield Finding(problem, f"{check.name}: {check.advice}")
    columns: Columns = [
        ("", lambda check: mark(_LEVELS[check.status])),
        ("name", lambda check: check.name),
        ("found", lambda check: Text(check.found)),
        ("enables", lambda check: Text(check.enables, "dim")),
    ]
    hidden, rest = (0, "") if verbose else (count["good"], "--verbose")
    tables: dict[str, list[Check]] = {}
    for check in (check for check in checks if verbose or check.status != "good"):
        title = check.topic if verbose else "Missing, or with a remark"
        tables.setdefault(title, []).append(check)
    for title, rows in tables.items():
        yield from ("", Table(title, columns, rows, keys=2, hidden=hidden, rest=rest))


def report_gpu(report: "GpuReport") -> Iterator[Part]:
    """Whether the GPU is right, and how its times are to those that it should take."""
    wrong, card = len(report.wrong), report.card
    said = f"{wrong} of {report.checks} checks differ from the reference"
    yield Finding("bad" if wrong else "good", f"{card.name} ({card.architecture}): {said}")
    for sentence in report.wrong:
        yield Finding("bad", sentence)
    yield ""
    columns: Columns = [
        ("operation", lambda row: row.name),
        ("predicted", lambda row: _time(row.predicted_us)),
        ("measured", lambda row: _time(row.measured_us)),
        ("of roofline", lambda row: _share(row.roofline_us, row.measured_us)),
    ]
    copied = f"{card.copy_gbps:,.0f} GB/s of a copy, {card.multiprocessors} multiprocessors"
    yield Table(copied, columns, report.rows, keys=1)


def _time(us: float | None) -> str:
    return ABSENT if us is None else f"{us:,.1f} µs"


def _share(least_us: float | None, measured_us: float | None) -> str:
    if least_us is None or not measured_us:
        return ABSENT
    return f"{100 * least_us / measured_us:.0f} %"


def report_conformity(
    engine: str, version: str, verdict: "Verdict", invariants: Mapping[str, str]
) -> Iterator[Part]:
    """PASS or FAIL, a row for every invariant, then the failures."""
    done = counted(verdict.operations, "operation")
    done = f"{engine} {version}: {done} in {counted(verdict.sequences, 'sequence')}"
    if verdict.failures:
        yield Finding("bad", f"FAIL: {' and '.join(verdict.failures)} broke; {done}")
    else:
        yield Finding("good", f"PASS: {done}")
    yield ""
    columns: Columns = [
        ("", lambda item: mark("bad" if item[0] in verdict.failures else "good")),
        ("invariant", lambda item: item[0]),
        ("broken in", lambda item: counted(verdict.broken[item[0]], "sequence")),
        ("what holds", lambda item: item[1]),
    ]
    yield Table("Invariants", columns, list(invariants.items()), keys=2)
    for failure in verdict.failures.values():
        settings = ", ".join(f"{name} {v}" for name, v in failure.sequence.settings.items())
        yield from ("", Text(f"{failure.kind}: {failure.says}", "bad"))
        seen = f"first seen after {counted(failure.found_after, 'operation')}"
        length = f"{len(failure.sequence.operations)}, with {settings}:"
        if failure.repeats:
            yield Text(f"{seen}; the shortest has {length}", "dim")
        else:
            yield Text(f"{seen}; did not repeat when the same sequence ran again", "warning")
            yield Text(f"the sequence has {length}", "dim")
        for operation in failure.sequence.operations:
            yield Text("  " + " ".join(map(str, operation)))


def brief_findings(
    subjects: "Sequence[Subject]", found: "Sequence[Found]", known: int
) -> Iterator[Part]:
    """How many faults, and the symptoms of three that are sure."""
    yield _sum_up(subjects, found, known)
    yield from [f"  {each.fault.symptom}" for each in found if each.is_sure][:3]


def report_findings(
    subjects: "Sequence[Subject]", found: "Sequence[Found]", known: int
) -> Iterator[Part]:
    """The answer; then symptom, cost and remedy of every fault, and where it is known from."""
    yield _sum_up(subjects, found, known)
    for each in found:
        fault = each.fault
        where = f"{each.subject.title}: " if len(subjects) > 1 else ""
        doubts = f" Possible: {'; '.join(each.doubts)}." if each.doubts else ""
        text = f"{where}{fault.symptom} It costs: {fault.effect}. {fault.workaround}{doubts}"
        yield Finding("bad" if each.is_sure else "warning", text)
    if found:
        once: dict[str, Found] = {}
        for each in found:
            once.setdefault(each.fault.id, each)
        yield ""
        columns: Columns = [
            ("fault", lambda each: each.fault.id),
            ("found", lambda each: "yes" if each.is_sure else "possible"),
            ("versions", lambda each: each.fault.versions.replace("*", "any")),
            ("fixed in", lambda each: each.fault.fixed_in or ABSENT),
            ("thread", lambda each: each.fault.source.removeprefix("https://")),
        ]
        least = ["found", "fixed in"]
        yield Table("Known faults", columns, list(once.values()), rest="--json", least=least)


def _sum_up(subjects: "Sequence[Subject]", found: "Sequence[Found]", known: int) -> Finding:
    looked_at = []
    for each in subjects:
        version = f" ({each.version or 'version unknown'})" if each.kind == "command" else ""
        missing = " (no arguments in it: give the command, too)" if each.flags is None else ""
        looked_at.append(each.title + (missing if each.kind == "log" else version))
    of, sure = ", ".join(looked_at), sum(each.is_sure for each in found)
    unknown = {each.engine for each in subjects} - {*known_engines(), ""}
    if not found and unknown:
        return Finding("warning", f"no faults of {' and '.join(sorted(unknown))} are known: {of}")
    if not found:
        is_whole = all(each.flags is not None for each in subjects if each.kind == "log")
        return Finding("good" if is_whole else "warning", f"none of {known} known faults: {of}")
    possible = f", {len(found) - sure} possible" if len(found) > sure else ""
    text = f"{counted(sure, 'fault')} found{possible}, of {known} known: {of}"
    return Finding("bad" if sure else "warning", text)


def probe_page(found: "Examination", ledger: "Ledger") -> Page:
    """The number of faults, each of them, and what to change; then every question."""
    bad = [each for each in found.conclusions if each.level == "bad"]
    undecided = sum(each.level == "undecided" for each in found.conclusions)
    total = len(found.conclusions)
    cost = f"{counted(ledger.prompts, 'prompt')}, {ledger.tokens:,} tokens"
    answered = f"{total - undecided} of {total} questions answered ({cost})"
    level: Level = "bad" if bad else "warning" if undecided else "good"
    answer: list[Part] = [Finding(level, f"{counted(len(bad), 'fault')} found, {answered}")]
    if found.died:
        answer.append(Finding("bad", f"the server stopped answering: {found.died}"))
    answer += [Finding("bad", f"{each.question}: {each.answer}") for each in bad]

    def answer_of(each: "Conclusion") -> str:
        return ("undecidable: " if each.level == "undecided" else "") + each.answer

    columns: Columns = [
        ("", lambda each: mark(_LEVELS[each.level])),
        ("question", lambda each: each.question),
        ("answer", answer_of),
    ]
    answer += ["", Table("A server's prefix cache", columns, found.conclusions, keys=2)]
    advice = [Text(f"{each.question}: {each.advice}") for each in found.conclusions if each.advice]
    answer += ["", Text("What to change", "strong"), *advice] if advice else []
    return Page("Prefix cache of a server", answer)
