"""Sources side by side: what they still write when Ctrl-C ends the recording."""

from _thread import interrupt_main
from pathlib import Path
from threading import Event

import pytest

from dsv4kv.record.folder import Recording, read_stream
from dsv4kv.record.run import run


class Late:
    """Is interrupted, and writes what it has a while after it was stopped."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def run(self, stop: Event) -> None:
        Event().wait(0.3)  # until its end is waited for
        interrupt_main()
        stop.wait()
        Event().wait(0.5)
        self._recording.write("requests", {"source": "late"})


def test_after_an_interrupt_sources_write_what_they_have(tmp_path: Path) -> None:
    with Recording(tmp_path / "recording") as recording, pytest.raises(KeyboardInterrupt):
        run([Late(recording)], recording)
    assert [row["source"] for row in read_stream(tmp_path / "recording", "requests")] == ["late"]
