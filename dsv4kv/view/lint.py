"""What ``dsv4kv lint`` found: how many faults, a sentence for each, and their threads."""

from collections.abc import Iterator, Sequence

from dsv4kv.diagnose.faults.subject import Subject
from dsv4kv.diagnose.faults.table import Finding as Found
from dsv4kv.diagnose.faults.table import known_engines
from dsv4kv.units import counted
from dsv4kv.view.table import ABSENT, Columns, Finding, Part, Table


def brief_findings(
    subjects: Sequence[Subject], found: Sequence[Found], known: int
) -> Iterator[Part]:
    """How many faults, and the symptoms of three that are sure."""
    yield _sum_up(subjects, found, known)
    yield from [f"  {each.fault.symptom}" for each in found if each.is_sure][:3]


def report_findings(
    subjects: Sequence[Subject], found: Sequence[Found], known: int
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


def _sum_up(subjects: Sequence[Subject], found: Sequence[Found], known: int) -> Finding:
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
        return Finding("good", f"none of {known} known faults: {of}")
    possible = f", {len(found) - sure} possible" if len(found) > sure else ""
    text = f"{counted(sure, 'fault')} found{possible}, of {known} known: {of}"
    return Finding("bad" if sure else "warning", text)
