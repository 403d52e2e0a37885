"""What ``dsv4kv lint`` found: a sentence for every fault, then a table of them."""

from collections.abc import Iterator, Sequence

from dsv4kv.faults.judge import Finding as Found
from dsv4kv.faults.subject import Subject
from dsv4kv.units import counted
from dsv4kv.view.table import ABSENT, Finding, Part, Table, names, prose


def report_findings(subjects: Sequence[Subject], found: Sequence[Found], known: int) -> list[Part]:
    """From what is wrong, what it costs and what to do, to where that is known from."""
    sentences: list[Part] = [_sentence(each, named=len(subjects) > 1) for each in found]
    table: list[Part] = ["", _table(found)] if found else []
    return [*sentences, *table, *([""] if found else []), _sum_up(subjects, found, known)]


def _sentence(found: Found, *, named: bool) -> Finding:
    fault = found.fault
    where = f"{found.subject.title}: " if named else ""
    doubts = f" Possible: {'; '.join(found.doubts)}." if found.doubts else ""
    text = f"{where}{fault.symptom} It costs: {fault.effect}. {fault.workaround}{doubts}"
    return Finding("bad" if found.is_sure else "warning", text)


def _table(found: Sequence[Found]) -> Table:
    """Every fault once, by the surest finding of it."""
    once: dict[str, Found] = {}
    for each in found:
        once.setdefault(each.fault.id, each)
    return Table(
        "Known faults",
        [*names("fault", "found", "versions", "fixed in"), *prose("thread")],
        [
            (
                each.fault.id,
                "yes" if each.is_sure else "possible",
                each.fault.versions.replace("*", "any"),
                each.fault.fixed_in or ABSENT,
                each.fault.source.removeprefix("https://"),
            )
            for each in once.values()
        ],
    )


def _sum_up(subjects: Sequence[Subject], found: Sequence[Found], known: int) -> Finding:
    of = ", ".join(_looked_at(subjects))
    sure = sum(each.is_sure for each in found)
    if not found:
        return Finding("good", f"none of {known} known faults: {of}")
    possible = f", {len(found) - sure} possible" if len(found) > sure else ""
    text = f"{counted(sure, 'fault')} found{possible}, of {known} known: {of}"
    return Finding("bad" if sure else "warning", text)


def _looked_at(subjects: Sequence[Subject]) -> Iterator[str]:
    for each in subjects:
        version = "" if each.kind != "command" else f" ({each.version or 'version unknown'})"
        silent = " (no arguments in it: give the command, too)" if each.flags is None else ""
        yield each.title + (version if each.kind != "log" else silent)
