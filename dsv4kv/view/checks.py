"""Verdicts of ``doctor``, ``conform``, ``lint``, ``probe``, ``inspect`` and ``kernels``."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsv4kv.diagnose.faults import known_engines
from dsv4kv.units import counted
from dsv4kv.view import table as tb

if TYPE_CHECKING:
    from dsv4kv.diagnose.conform import Verdict
    from dsv4kv.diagnose.doctor import Check
    from dsv4kv.diagnose.dumps import Comparison, Inspection
    from dsv4kv.diagnose.faults import Finding as Found
    from dsv4kv.diagnose.gpu import GpuReport
    from dsv4kv.diagnose.probe import Examination
    from dsv4kv.diagnose.questioner import Ledger
    from dsv4kv.diagnose.subjects import Subject
    from dsv4kv.ops.cuda.inspection import Finding as Compiled

_LEVELS: dict[str, tb.Level] = {
    "good": "good",
    "note": "note",
    "missing": "missing",
    "undecided": "missing",
    "broken": "bad",
    "bad": "bad",
}


def report_checks(checks: "Sequence[Check]", *, verbose: bool) -> Iterator[tb.Part]:
    """Whether a bench can run, what to do, and what is not good; or a table for each topic."""
    count = Counter(check.status for check in checks)
    counts = ", ".join(
        counted(count[each], each) if each == "note" else f"{count[each]} {each}"
        for each in ("good", "note", "missing", "broken")
        if count[each]
    )
    can, say = ("cannot", tb.bad) if count["broken"] else ("can", tb.good)
    yield say(f"dsv4kv bench {can} run here: of {len(checks)} checks {counts}")
    for check in (check for check in checks if check.advice):
        say = tb.bad if check.status == "broken" else tb.warning
        yield say(f"{check.name}: {check.advice}")
    columns: tb.Columns = [
        ("", lambda check: tb.mark(_LEVELS[check.status])),
        ("name", lambda check: check.name),
        ("found", lambda check: check.found),
        ("enables", lambda check: tb.dim(check.enables)),
    ]
    hidden, rest = (0, "") if verbose else (count["good"], "--verbose")
    tables: dict[str, list[Check]] = {}
    for check in (check for check in checks if verbose or check.status != "good"):
        title = check.topic if verbose else "Missing, or with a remark"
        tables.setdefault(title, []).append(check)
    for title, rows in tables.items():
        yield from ("", tb.Table(title, columns, rows, keys=2, hidden=hidden, rest=rest))


def report_gpu(report: "GpuReport") -> Iterator[tb.Part]:
    """Whether the GPU is right, and how its times are to those that it should take."""
    wrong, card = report.wrong, report.card
    said = f"{len(wrong)} of {report.checks} checks differ from the reference"
    yield (tb.bad if wrong else tb.good)(f"{card.name} ({card.architecture}): {said}")
    yield from map(tb.bad, wrong)

    def time(us: float | None) -> str | None:
        return None if us is None else f"{us:,.1f} µs"

    def share(row: Any) -> str | None:
        known = row.roofline_us is not None and row.measured_us
        return f"{100 * row.roofline_us / row.measured_us:.0f} %" if known else None

    columns: tb.Columns = [
        ("operation", lambda row: row.name),
        ("predicted", lambda row: time(row.predicted_us)),
        ("measured", lambda row: time(row.measured_us)),
        ("of roofline", share),
    ]
    copied = f"{card.copy_gbps:,.0f} GB/s of a copy, {card.multiprocessors} multiprocessors"
    yield from ("", tb.Table(copied, columns, report.rows, keys=1))


def report_conformity(
    engine: str, version: str, verdict: "Verdict", invariants: Mapping[str, str]
) -> Iterator[tb.Part]:
    """PASS or FAIL, a row for every invariant, then the failures."""
    done = counted(verdict.operations, "operation")
    done = f"{engine} {version}: {done} in {counted(verdict.sequences, 'sequence')}"
    broke = " and ".join(verdict.failures)
    yield tb.bad(f"FAIL: {broke} broke; {done}") if broke else tb.good(f"PASS: {done}")
    columns: tb.Columns = [
        ("", lambda item: tb.mark("bad" if item[0] in verdict.failures else "good")),
        ("invariant", lambda item: item[0]),
        ("broken in", lambda item: counted(verdict.broken[item[0]], "sequence")),
        ("what holds", lambda item: item[1]),
    ]
    yield from ("", tb.Table("Invariants", columns, list(invariants.items()), keys=2))
    for failure in verdict.failures.values():
        settings = ", ".join(f"{name} {v}" for name, v in failure.sequence.settings.items())
        yield from ("", tb.Text(f"{failure.kind}: {failure.says}", "bad"))
        seen = f"first seen after {counted(failure.found_after, 'operation')}"
        length = f"{len(failure.sequence.operations)}, with {settings}:"
        if failure.repeats:
            yield tb.dim(f"{seen}; the shortest has {length}")
        else:
            yield tb.Text(f"{seen}; did not repeat when the same sequence ran again", "warning")
            yield tb.dim(f"the sequence has {length}")
        for operation in failure.sequence.operations:
            yield tb.Text("  " + " ".join(map(str, operation)))


def brief_findings(
    subjects: "Sequence[Subject]", found: "Sequence[Found]", known: int
) -> Iterator[tb.Part]:
    """How many faults, and the symptoms of three that are sure."""
    yield _sum_up(subjects, found, known)
    yield from [f"  {each.fault.symptom}" for each in found if each.is_sure][:3]


def report_findings(
    subjects: "Sequence[Subject]", found: "Sequence[Found]", known: int
) -> Iterator[tb.Part]:
    """The answer; then symptom, cost and remedy of every fault, and where it is known from."""
    yield _sum_up(subjects, found, known)
    for each in found:
        fault = each.fault
        where = f"{each.subject.title}: " if len(subjects) > 1 else ""
        doubts = f" Possible: {'; '.join(each.doubts)}." if each.doubts else ""
        text = f"{where}{fault.symptom} It costs: {fault.effect}. {fault.workaround}{doubts}"
        yield (tb.bad if each.is_sure else tb.warning)(text)
    if found:
        once = list({each.fault.id: each for each in reversed(found)}.values())[::-1]
        columns: tb.Columns = [
            ("fault", lambda each: each.fault.id),
            ("found", lambda each: "yes" if each.is_sure else "possible"),
            ("versions", lambda each: each.fault.versions.replace("*", "any")),
            ("fixed in", lambda each: each.fault.fixed_in or None),
            ("thread", lambda each: each.fault.source.removeprefix("https://")),
        ]
        least = ["found", "fixed in"]
        yield from ("", tb.Table("Known faults", columns, once, rest="--json", least=least))


def _sum_up(subjects: "Sequence[Subject]", found: "Sequence[Found]", known: int) -> tb.Finding:
    looked_at = []
    for each in subjects:
        version = f" ({each.version or 'version unknown'})" if each.kind == "command" else ""
        missing = " (no arguments in it: give the command, too)" if each.flags is None else ""
        looked_at.append(each.title + (missing if each.kind == "log" else version))
    of, sure = ", ".join(looked_at), sum(each.is_sure for each in found)
    unknown = {each.engine for each in subjects} - {*known_engines(), ""}
    if not found and unknown:
        return tb.warning(f"no faults of {' and '.join(sorted(unknown))} are known: {of}")
    if not found:
        is_whole = all(each.flags is not None for each in subjects if each.kind == "log")
        return tb.Finding("good" if is_whole else "warning", f"none of {known} known faults: {of}")
    possible = f", {len(found) - sure} possible" if len(found) > sure else ""
    text = f"{counted(sure, 'fault')} found{possible}, of {known} known: {of}"
    return tb.Finding("bad" if sure else "warning", text)


def probe_page(found: "Examination", ledger: "Ledger") -> tb.Page:
    """The number of faults, each of them, and what to change; then every question."""
    bad = [each for each in found.conclusions if each.level == "bad"]
    undecided = sum(each.level == "undecided" for each in found.conclusions)
    total = len(found.conclusions)
    cost = f"{counted(ledger.prompts, 'prompt')}, {ledger.tokens:,} tokens"
    answered = f"{total - undecided} of {total} questions answered ({cost})"
    level: tb.Level = "bad" if bad else "warning" if undecided else "good"
    answer: list[tb.Part] = [tb.Finding(level, f"{counted(len(bad), 'fault')} found, {answered}")]
    if found.died:
        answer.append(tb.bad(f"the server stopped answering: {found.died}"))
    answer += [tb.bad(f"{each.question}: {each.answer}") for each in bad]
    columns: tb.Columns = [
        ("", lambda each: tb.mark(_LEVELS[each.level])),
        ("question", lambda each: each.question),
        ("answer", lambda e: "undecidable: " * (e.level == "undecided") + e.answer),
    ]
    answer += ["", tb.Table("A server's prefix cache", columns, found.conclusions, keys=2)]
    advice = [
        tb.Text(f"{each.question}: {each.advice}") for each in found.conclusions if each.advice
    ]
    answer += ["", tb.strong("What to change"), *advice] if advice else []
    return tb.Page("Prefix cache of a server", answer)


# ---- inspect

_BEGIN_BYTES = 2**26  # of a dump, which may be many times as large
_CANDIDATES = 3


def report_inspection(found: "Inspection") -> Iterator[tb.Part]:
    """Which record it is and its faults; then the faults and the candidates."""
    from dsv4kv.diagnose.dumps import FAULTS

    record, pages = found.record, counted(len(found.table), "page")
    if record is None:
        yield tb.bad(f"not recognised: {_unknown(found)}")
    elif not record.usual:
        yield tb.bad(f"{record.title}: engines arrange this record otherwise.")
    if record and found.faults:
        kinds = ", ".join(each.kind for each in found.faults)
        yield tb.bad(f"{record.title}; {pages} with faults: {kinds}")
        faults: tb.Columns = [
            ("kind", lambda each: each.kind),
            ("rows", lambda each: each.rows),
            ("first at", _place),
            ("meaning", lambda each: FAULTS[each.kind]),
        ]
        note = "pages and entries from 0, as they are in the dump"
        yield from ("", tb.Table("Faults", faults, found.faults, note=note))
    elif record and record.usual:
        yield tb.good(f"{record.title}; {pages}, no fault found")
    if found.tried:
        tried: tb.Columns = [
            ("record", lambda each: each.record.title),
            ("of", lambda e: e.record.of + ("" if e.record.usual else "; no engine's")),
            ("rows that fit", lambda each: tb.Number(f"{each.fits:.1%}")),
            ("rows", lambda each: each.rows),
        ]
        title = f"{found.dump.title}, {len(found.dump.data):,} B"
        yield from ("", tb.Table(title, tried, found.tried[:_CANDIDATES]))


def _unknown(found: "Inspection") -> str:
    from dsv4kv.diagnose.records import SURE

    if found.unmarked:
        fits = " or ".join(found.unmarked)
        return f"by size it may be {fits}, whose bytes carry no mark: name it with --format."
    if found.tried:
        best = found.tried[0]
        return (
            f"{best.record.title} is closest, and {best.fits:.0%} of its rows fit ({SURE:.0%} are "
            "needed)."
        )
    begin = found.dump.data[:_BEGIN_BYTES]
    if begin.any():
        return "the size is no whole number of pages of any V4, V4.1 or V3.2 record."
    known = "every byte is" if len(begin) == len(found.dump.data) else "the first 64 MiB are"
    return f"{known} zero: nothing was written to these pages."


def _place(fault: Any) -> str:
    place = f"page {fault.page}"
    place += f", entry {fault.entry}" if fault.entry is not None else ""
    return place + (f", token {fault.position:,}" if fault.position is not None else "")


def report_comparison(found: "Comparison") -> Iterator[tb.Part]:
    from dsv4kv.diagnose.dumps import DIFFERENCES

    rows = f"{found.equal:,} of {found.rows:,} rows are equal"
    worst = next((each for each in found.differences if each.kind != "one step"), None)
    if worst:
        yield tb.bad(f"{rows}; first at entry {worst.entry:,}: {worst.kind}")
    elif found.differences:
        yield tb.warning(f"{rows}, the others within a quantisation step")
    else:
        yield tb.good(f"{rows}, bit for bit")
    for which, alone in zip(("first", "second"), found.alone, strict=True):
        if alone:
            more = counted(alone, "row")
            yield tb.warning(f"the {which} dump has {more} more, which are not compared")
    if found.differences:
        columns: tb.Columns = [
            ("kind", lambda each: each.kind),
            ("rows", lambda each: each.rows),
            ("first entry", lambda each: each.entry),
            ("token", lambda each: each.position),
            ("meaning", lambda e: DIFFERENCES[e.kind] + (f" ({e.detail})" if e.detail else "")),
        ]
        yield from ("", tb.Table("Differences", columns, found.differences))


# ---- kernels


def registers_table(findings: "Sequence[Compiled]") -> tb.Table:
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for finding in findings:
        report = finding.report
        row = rows.setdefault((finding.kernel, finding.example.subject), {})
        mark = "!" if report.local_bytes else ""
        row[finding.architecture] = f"{report.registers} / {report.instructions}{mark}"
    architectures = list(dict.fromkeys(finding.architecture for finding in findings))
    cells = [(*key, *(row.get(name) for name in architectures)) for key, row in rows.items()]
    note = "registers a thread / instructions; ! uses local memory"
    heads = ["kernel", "works on", *architectures]
    return tb.Table("Kernels", heads, cells, note=note, keys=2)
