"""Rows on disk: whole or none, whoever was killed before."""

from pathlib import Path

from visit import rows


def test_a_row_that_was_cut_short_is_lost_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows.append(file, {"n": 0, "unit": "µs"})
    whole = file.read_bytes()
    for kept in range(1, len(whole)):
        file.write_bytes(whole + whole[:kept])
        rows.append(file, {"n": 2})
        assert [row["n"] for row in rows.read(file)] in ([0, 2], [0, 0, 2])
    file.write_bytes(whole + whole[:-2])
    assert rows.read(file) == [{"n": 0, "unit": "µs"}]
