"""Columns out of lines."""

import json

from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.measure.telemetry.readings import Table, parse_lines


def lines(*documents: dict[str, object]) -> list[bytes]:
    return [json.dumps(document).encode() + b"\n" for document in documents]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))))
def test_every_column_is_as_long_as_there_are_polls(answers: list[dict[str, int]]) -> None:
    table = Table()
    for at, answer in enumerate(answers):
        table.add(at, answer)
    assert table.at_ns == list(range(len(answers)))
    for name, column in table.columns.items():
        assert column == [answer.get(name) for answer in answers]


def test_kinds_go_to_tables_of_their_own() -> None:
    found = parse_lines(
        lines(
            {"kind": "facts", "uuid": "GPU-1", "name": "H200"},
            {"kind": "often", "at": 1, "reasons": 0},
            {"kind": "host", "at": 2, "load_1min": 0.5},
            {"kind": "often", "at": 3, "reasons": 4},
            {"kind": "seldom", "at": 4, "pcie_width": 16},
            {"kind": "absent", "cpu_mhz": "No such file"},
            {"kind": "absent", "gpu": "lost"},
        )
    )
    assert found.facts == {"uuid": "GPU-1", "name": "H200"}
    assert (found.often.at_ns, found.often.columns) == ([1, 3], {"reasons": [0, 4]})
    assert (found.host.at_ns, found.host.columns) == ([2], {"load_1min": [0.5]})
    assert (found.seldom.at_ns, found.seldom.columns) == ([4], {"pcie_width": [16]})
    assert found.absent == {"cpu_mhz": "No such file", "gpu": "lost"}


def test_a_line_that_was_cut_off_is_left_out() -> None:
    whole = lines({"kind": "host", "at": 2, "load_1min": 0.5})
    assert parse_lines([*whole, b'{"kind": "host", "at"']).host.at_ns == [2]
