"""Whatever a file holds, the answer is a sentence or a result; the whole of it: ``make fuzz``."""

from pathlib import Path

import pytest

from tests.fuzz.readers import READERS
from tests.fuzz.run import run_case

ROUNDS = 2  # of every reader


@pytest.mark.parametrize("number", range(ROUNDS * (len(READERS) + 1)))
def test_no_file_gives_a_traceback_or_a_command_to_the_terminal(
    number: int, tmp_path: Path
) -> None:
    what, problem = run_case(number, tmp_path)
    assert problem is None, what
