"""One step as a picture and as a Chrome trace."""

import json
from pathlib import Path

import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.runs.profile import Timeline
from dsv4kv.view.profile import chrome_trace, timeline_chart, write_timeline
from tests.profile.exports import two_replays
from tests.profile.kernel_profiles import from_kineto, from_nsys

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    found = from_nsys(tmp_path).timeline
    assert found is not None
    return found


def test_a_step_has_its_work_and_its_launches_from_its_first_moment(timeline: Timeline) -> None:
    names = [timeline.names[number] for number in timeline.name]
    lanes = [timeline.lanes[number] for number in timeline.lane]
    assert [*zip(names, lanes, timeline.start_ns, timeline.duration_ns, strict=True)] == [
        ("memcpy host to device", "GPU 0 stream 7", 19_500, 1_000),
        ("memset", "GPU 0 stream 7", 21_500, 1_000),
        ("void dsv::window_insert<int>(int*)", "GPU 0 stream 7", 28_500, 10_000),
        ("void dsv::flush<int>(int*)", "GPU 0 stream 7", 40_500, 10_000),
        ("void dsv::gather_topk<int>(int*)", "GPU 0 stream 7", 52_500, 10_000),
        ("launch", "host", 0, 1_000),
        ("launch", "host", 3_500, 3_000),
    ]


def test_the_step_of_median_length_is_picked(tmp_path: Path) -> None:
    export = two_replays()
    for step, length in ((2, 500), (3, 100), (4, 900)):
        begin = step * 100_000
        export.range("step", begin, begin + 50)
        export.call(500 + step, begin + 1, begin + 2)
        export.kernel(f"of_step_{step}", 500 + step, begin + 10, begin + 10 + length)
    found = from_nsys(tmp_path, export).timeline
    assert found is not None
    assert any("of_step_4" in name for name in found.names)  # 100, 500, 900, 43,000, 43,000


def test_the_chrome_trace_is_one_that_perfetto_and_chrome_load(timeline: Timeline) -> None:
    """As the trace event format asks: an object of events, complete ones with these fields."""
    document = json.loads(chrome_trace(timeline))
    assert document["displayTimeUnit"] in ("ns", "ms")
    events = document["traceEvents"]
    threads = {one["tid"]: one["args"]["name"] for one in events if one["ph"] == "M"}
    assert set(threads.values()) == {"GPU 0 stream 7", "host"}
    complete = [one for one in events if one["ph"] == "X"]
    assert len(complete) == 7
    for one in complete:
        assert (type(one["name"]), type(one["pid"])) == (str, int)
        assert one["tid"] in threads
        assert one["ts"] >= 0
        assert one["dur"] > 0
    assert {one["ph"] for one in events} == {"M", "X"}


def test_boxes_are_inside_the_picture_and_do_not_overlap(tmp_path: Path) -> None:
    found = from_kineto(tmp_path).timeline  # operations inside operations
    assert found is not None
    (axes,) = timeline_chart(found).draw().axes
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    boxes = [patch.get_path().get_extents(patch.get_patch_transform()) for patch in axes.patches]
    assert len(boxes) == len(found.name) == 3
    for box in boxes:
        assert left <= box.x0 < box.x1 <= right * 1.001
        assert top <= box.y0 < box.y1 <= bottom
    for number, box in enumerate(boxes):
        others = [other for other in boxes[number + 1 :] if other.y0 == box.y0]
        assert not [other for other in others if other.x0 < box.x1 - 1 and box.x0 < other.x1 - 1]


@pytest.mark.parametrize("name", ["step.png", "step", "gone/step.svg"])
def test_files_that_cannot_be_are_refused(name: str, timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=name):
        write_timeline(timeline, tmp_path / name)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".sqlite"]
