import subprocess
import sys
from pathlib import Path

from dsv4kv.view.html import write_page
from dsv4kv.view.runs import runs_page
from dsv4kv.view.table import Page
from tests.runs.records import make_case, make_record

LIMIT_BYTES = 1_500_000
WRITE = """
import sys
from pathlib import Path
from dsv4kv.view.html import write_page
from dsv4kv.view.runs import runs_page
print(*(name for name in ("torch", "matplotlib", "jinja2") if name in sys.modules))
from tests.runs.records import make_case, make_record
write_page(runs_page([make_record(make_case(operations=[], memcpy=None))]), Path(sys.argv[1]))
print(*(name for name in ("torch", "matplotlib.pyplot") if name in sys.modules))
"""


def test_a_page_takes_what_is_heavy_when_it_is_written_and_neither_torch_nor_a_screen(
    tmp_path: Path,
) -> None:
    script = [sys.executable, "-c", WRITE, str(tmp_path / "page.html")]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    assert done.stdout == "\n\n"
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_page_of_a_hundred_cases_stays_below_a_megabyte_and_a_half(tmp_path: Path) -> None:
    cases = [
        make_case(axis={"cache.block_tokens": 128 * (n % 10 + 1), "workload.concurrency": n // 10})
        for n in range(100)
    ]
    write_page(runs_page([make_record(*cases)]), tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < LIMIT_BYTES


def test_control_characters_of_a_record_are_shown_as_escapes(tmp_path: Path) -> None:
    write_page(Page("a\x1b[31mb\u202ec\r", ["\x00"], []), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_bytes().decode()
    assert not {*"\x00\x1b\u202e\r"} & {*text}
    assert r"a\x1b[31mb\u202ec\r" in text
