"""Steps: works timed one by one; of the first also what memory gives."""

from dataclasses import replace

from dsv4kv.bench.device import measure_peaks
from visit import rows
from visit.desk import Desk
from visit.place import Place
from visit.questions import CARDS, H200, figure
from visit.stopwatch import Measured, Stopwatch
from visit.workloads import Work

_PEAK_BYTES = 1 << 30
_PEAKS = {"copy": "copy_own", "torch_copy": "copy_torch", "read": "read", "write": "write"}


def run(desk: Desk, peaks: str = "") -> None:
    """Answer the step's questions; with ``peaks`` those of memory first."""
    with desk.place() as place:
        watch = Stopwatch(desk, place)
        if peaks:
            _answer_peaks(place, watch)
        copies = [
            row["measured"]
            for row in rows.read(desk.file)
            if row.get("question") in ("copy_own", "copy_torch") and row["measured"]
        ]
        card = CARDS.get(desk.card(), CARDS[H200])
        if copies:
            card = replace(card, copy_gbps=1e3 * max(copies))
        timed: dict[str, tuple[Work, Measured]] = {}
        for question in desk.step.questions:
            if question.work is None:
                continue
            name = question.name.removesuffix("_share")
            if name not in timed:
                work = question.work(place)
                timed[name] = work, watch.time(work, name)
            work, found = timed[name]
            unit = question.unit
            watch.answer(
                question.name,
                found,
                lambda ns, work=work, unit=unit: figure(unit, ns, work, card),  # type: ignore[misc]
            )
            timed[name] = replace(work, calls=()), found  # its memory is free again


def _answer_peaks(place: Place, watch: Stopwatch) -> None:
    for peak in measure_peaks(place.device, place.size(_PEAK_BYTES, 1 << 16), watch.timer):
        found = Measured(peak.samples_ns, 1, peak.bytes)
        moved = peak.bytes
        watch.answer(
            _PEAKS[peak.name],
            found,
            lambda ns, moved=moved: moved / ns / 1e3,  # type: ignore[misc]
        )
    watch.answer("empty_node", Measured(watch.timer.time_floor(), 1, 0), lambda ns: ns / 1e3)
