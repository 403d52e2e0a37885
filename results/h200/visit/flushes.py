"""Step: flushes by the number of blocks that share an entry, cold, on random states."""

from visit import workloads
from visit.desk import Desk
from visit.stopwatch import Stopwatch

_TOKENS = 8192
_SPLITS = {"csa": (None, 2), "hca": (None, 1, 2, 4)}


def run(desk: Desk) -> None:
    """Answer the questions of ``questions.FLUSHES``."""
    with desk.place() as place:
        watch = Stopwatch(desk, place)
        for kind, splits in _SPLITS.items():
            for split in splits:
                name = f"flush_{kind}" if split is None else f"flush_{kind}_split_{split}"
                work = workloads.flush(place, kind, place.size(_TOKENS, 256), split)
                watch.answer(name, watch.time(work, name), lambda ns: ns / 1e3)
