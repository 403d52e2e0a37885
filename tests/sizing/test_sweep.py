"""A sweep answers every combination; its table, CSV and chart tell the same numbers."""

import csv
import io
import re
from xml.etree import ElementTree

import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.answer import answer
from dsv4kv.sizing.sweep import COLUMNS, Axis, parse_axis, run_sweep, to_values
from dsv4kv.view.chart import draw_page, draw_sweep
from dsv4kv.view.markup import to_csv
from dsv4kv.view.table import tabulate
from tests.sizing.questions import ask

SVG = "{http://www.w3.org/2000/svg}"
CONTEXTS = Axis("context", ("4K", "32K", "1M"))
GPUS = Axis("gpu", ("h200", "b200"))
EIGHT = {"gpus": "8"}


def drawn(texts: dict[str, str], *axes: Axis) -> ElementTree.Element:
    return ElementTree.fromstring(draw_sweep(run_sweep(texts, axes)))


def words(svg: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{SVG}text")]


def test_an_axis_is_a_name_and_its_values() -> None:
    assert parse_axis("context=4K, 32K ,1M") == CONTEXTS
    assert parse_axis("In_Flight tokens=2K") == Axis("in-flight-tokens", ("2K",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("context", "--axis context: write NAME=A,B"),
        ("contxt=4K", "no input to sweep 'contxt' (did you mean context"),
        ("context=4K,", "--axis context=4K,: a value is missing or comes twice."),
        ("context=4K,4K", "--axis context=4K,4K: a value is missing or comes twice."),
    ],
)
def test_a_wrong_axis_is_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_axis(text)
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(("texts", "axes"), [({"context": "1K"}, [CONTEXTS]), ({}, [GPUS, GPUS])])
def test_an_input_given_twice_is_refused(texts: dict[str, str], axes: list[Axis]) -> None:
    with pytest.raises(ConfigError, match=r"it is given twice: keep one\."):
        run_sweep(texts, axes)


def test_every_combination_has_the_answer_that_it_has_alone() -> None:
    rows = run_sweep(EIGHT, [CONTEXTS, GPUS])
    points = [tuple(row.point.values()) for row in rows]
    assert points == [(context, gpu) for context in CONTEXTS.values for gpu in GPUS.values]
    for row in rows:
        assert row.found is not None
        alone = answer(ask(**EIGHT, **row.point))
        assert row.found.use == alone.use
        assert row.found.max_concurrency == alone.max_concurrency


def test_a_combination_without_an_answer_keeps_its_sentence_and_its_cache() -> None:
    """The weights of V4.1-Flash are not known; its cache is: 890 B per token."""
    first, second = run_sweep(EIGHT, [Axis("model", ("v4-flash", "v4.1-flash"))])
    assert first.problem is None
    assert second.found is None
    assert second.problem is not None
    assert "weights of v4.1-flash" in second.problem
    assert second.token_bytes == 890


def test_a_sweep_without_any_answer_is_refused_with_the_first_sentence() -> None:
    with pytest.raises(ConfigError, match=r"weights of v4.1-flash"):
        run_sweep({"model": "v4.1-flash"}, [CONTEXTS])


def test_a_value_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="--context: 'x' is not a count"):
        run_sweep(EIGHT, [Axis("context", ("4K", "x"))])


def test_csv_has_a_line_for_every_row_and_the_numbers_of_the_answers() -> None:
    rows = run_sweep(EIGHT, [CONTEXTS, Axis("model", ("v4-flash", "v4.1-flash"))])
    text = to_csv(tabulate([to_values(row) for row in rows]))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert list(lines[0]) == ["context", "model", *COLUMNS, "problem"]
    for line, row in zip(lines, rows, strict=True):
        wanted = {k: "" if v is None else str(v) for k, v in to_values(row).items()}
        assert line == wanted


def test_an_axis_that_is_also_a_column_is_one_column() -> None:
    rows = run_sweep({}, [Axis("gpus", ("4", "8"))])
    lines = to_csv(tabulate([to_values(row) for row in rows])).splitlines()
    assert lines[0].split(",").count("gpus") == 1
    assert [line.split(",")[0] for line in lines[1:]] == ["4", "8"]


def test_a_chart_of_contexts_has_a_line_for_every_other_value_and_labels_with_units() -> None:
    svg = drawn(EIGHT, CONTEXTS, GPUS)
    assert len(list(svg.iter(f"{SVG}polyline"))) == 2
    assert len(list(svg.iter(f"{SVG}circle"))) == 6
    assert {"4K", "32K", "1M", "context of a request, tokens (1K = 1,024)"} <= set(words(svg))
    assert {"requests at once", "h200 (8 GPUs)", "b200 (8 GPUs)"} <= set(words(svg))
    assert "dsv4kv budget; memory is binary: 1 GiB = 2^30 B" in words(svg)


def test_the_context_lies_below_whatever_the_order_of_the_axes() -> None:
    svg = drawn({"tp": "8"}, Axis("gpus", ("8", "16")), CONTEXTS)
    assert {"context of a request, tokens (1K = 1,024)", "8 (8 GPUs)", "16 (16 GPUs)"} <= set(
        words(svg)
    )


def test_points_lie_by_the_logarithm_of_context_and_load() -> None:
    svg = drawn(EIGHT, Axis("context", ("4K", "64K", "1M")))
    xs = [float(circle.attrib["cx"]) for circle in svg.iter(f"{SVG}circle")]
    ys = [float(circle.attrib["cy"]) for circle in svg.iter(f"{SVG}circle")]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.11)
    assert ys == sorted(ys)  # downwards: fewer and fewer


def test_nothing_that_fits_is_a_hollow_point_on_the_axis() -> None:
    svg = drawn({"gpus": "4", "model": "v4-pro", "gpu": "h200"}, CONTEXTS)
    assert {circle.attrib["fill"] for circle in svg.iter(f"{SVG}circle")} == {"#ffffff"}


def test_a_chart_of_names_has_a_bar_for_every_combination_with_its_number() -> None:
    svg = drawn({**EIGHT, "context": "128K"}, GPUS, Axis("engine", ("dsv4kv", "vllm:0.33")))
    rows = run_sweep({**EIGHT, "context": "128K"}, [GPUS, Axis("engine", ("dsv4kv", "vllm:0.33"))])
    counts = {f"{row.found.max_concurrency:,}" for row in rows if row.found}
    assert counts <= set(words(svg))
    assert {"h200", "b200", "gpu"} <= set(words(svg))


@pytest.mark.parametrize(
    ("texts", "axis", "label"),
    [
        ({"context": "32K"}, Axis("concurrency", ("8", "800", "8K")), "GPUs needed"),
        ({"gpus": "8"}, Axis("concurrency", ("8", "800")), "longest context, tokens"),
        (
            {"gpus": "8", "context": "32K"},
            Axis("concurrency", ("8", "800")),
            "cache on one GPU, GiB",
        ),
        (
            {"gpus": "8", "context": "32K"},
            Axis("model", ("v4-flash", "gqa8")),
            "cache of one request, GiB",
        ),
    ],
)
def test_a_chart_shows_what_was_left_open(texts: dict[str, str], axis: Axis, label: str) -> None:
    assert label in words(drawn(texts, axis))


def test_more_lines_than_can_be_told_apart_are_refused() -> None:
    many = Axis("concurrency", tuple(str(n) for n in range(1, 16)))
    with pytest.raises(ConfigError, match="a chart of 15 lines cannot be read"):
        draw_sweep(run_sweep(EIGHT, [CONTEXTS, many]))


def test_the_page_holds_the_chart_and_every_row() -> None:
    rows = run_sweep(EIGHT, [CONTEXTS, GPUS])
    page = draw_page(rows)
    assert draw_sweep(rows) in page
    assert len(re.findall("<tr>", page)) == 1 + len(rows)
    assert all(f"<td>{row.found.max_concurrency:,}</td>" in page for row in rows if row.found)
