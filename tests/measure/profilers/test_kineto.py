"""Chrome traces of torch.profiler, of GPUs and of CPUs."""

import json
import tracemalloc
from pathlib import Path

import pytest

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.chrome_file import ChromeFile
from dsv4kv.measure.profilers.kineto import read_kineto
from dsv4kv.measure.profilers.trace import KINDS, NONE, LaunchShape, Trace
from tests.measure.profilers.traces import cpu_events, event, gpu_events, save


def told(trace: Trace) -> list[tuple[str, str, int, str | None]]:
    work = trace.work
    return [
        (
            KINDS[work.kind[i]],
            trace.names[work.name[i]],
            int(work.step[i]),
            None if work.phase[i] == NONE else trace.names[work.phase[i]],
        )
        for i in range(len(work))
    ]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_work_of_a_gpu_is_told_with_step_and_phase(name: str, tmp_path: Path) -> None:
    trace = read_kineto(save(tmp_path / name, gpu_events()))
    a_step = [
        ("kernel", "flush"),
        ("kernel", "gather_topk"),
        ("memcpy", "Memcpy HtoD (Pinned -> Device)"),
    ]
    steps = [(kind, title, step, "replay") for step in (0, 1) for kind, title in a_step]
    assert told(trace) == [*steps, ("kernel", "lost", NONE, None)]
    assert trace.devices == {0: "A GPU"}
    assert trace.calls.step.tolist() == [0, 1]


def test_microseconds_with_decimals_are_whole_nanoseconds(tmp_path: Path) -> None:
    work = read_kineto(save(tmp_path / "t.json", gpu_events())).work
    assert (work.end_ns - work.start_ns)[0] == 30_500
    assert (work.start_ns[1] - work.end_ns[0]) == 1_500


def test_launch_shapes_of_kernels_are_kept(tmp_path: Path) -> None:
    trace = read_kineto(save(tmp_path / "t.json", gpu_events()))
    shapes = [trace.shapes[i] for i in trace.work.shape[:3]]
    assert shapes == [
        LaunchShape((64, 1, 1), (256, 1, 1), 40, 512),
        LaunchShape((64, 1, 1), (256, 1, 1), 40, None),
        LaunchShape(None, None, None, None),
    ]
    assert trace.work.bytes[:3].tolist() == [NONE, NONE, 64]


def test_without_a_gpu_operations_of_the_cpu_are_told_by_the_time_they_take_themselves(
    tmp_path: Path,
) -> None:
    trace = read_kineto(save(tmp_path / "t.json", cpu_events()))
    assert told(trace) == [
        ("range", "gather_topk csa", 0, "gather_topk csa"),
        ("op", "aten::index", 0, "gather_topk csa"),
        ("op", "aten::empty", 0, "gather_topk csa"),
        ("op", "aten::empty", NONE, None),
    ]
    assert trace.work.self_ns.tolist() == [30_000, 30_000, 20_000, 5_000]
    assert trace.notes[0].startswith("no GPU kernels")


def test_a_trace_may_be_a_list_of_events_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(gpu_events()))
    assert len(read_kineto(path).work) == 7


def test_names_of_the_first_kineto_are_known(tmp_path: Path) -> None:
    events = [
        event("Runtime", "cudaLaunchKernel", 0, 5, correlation=1),
        event("Kernel", "flush", 10, 5, correlation=1, device=0, stream="stream 7"),
    ]
    trace = read_kineto(save(tmp_path / "t.json", events))
    assert told(trace) == [("kernel", "flush", NONE, None)]
    assert trace.work.stream.tolist() == [NONE]


def test_another_range_can_be_the_step(tmp_path: Path) -> None:
    path = save(tmp_path / "t.json", gpu_events())
    assert len(read_kineto(path, "replay").steps_ns) == 2
    assert "no range is named 'gone': no steps" in read_kineto(path, "gone").notes


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "has no traceEvents"),
        ('{"a": 1}', "has no traceEvents"),
        ('{"traceEvents": [{"ph": "X"', "damaged or cut short"),
        ('{"traceEvents": [{"ph": "X"}, ', "damaged or cut short"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "none of torch's"),
        ("\x00\x01", "has no traceEvents"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_sentence(
    content: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(ProfileError, match=sentence):
        read_kineto(path)


def test_a_packed_trace_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "t.json.gz", gpu_events())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ProfileError, match="damaged or cut short"):
        read_kineto(path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x1f\x8bnot packed"])
def test_bytes_that_are_no_text_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"t\.json"):
        read_kineto(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        read_kineto(tmp_path / "gone.json")


@pytest.mark.parametrize("indent", [0, 3])
def test_events_are_found_wherever_a_chunk_ends(
    indent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "t.json", gpu_events(), indent=indent)
    expected = list(ChromeFile(path))
    assert len(expected) == 16
    for size in (1, 7, 64):
        monkeypatch.setattr("dsv4kv.measure.profilers.chrome_file._CHUNK", size)
        assert list(ChromeFile(path)) == expected


def test_an_event_needs_less_than_500_bytes_of_memory(tmp_path: Path) -> None:
    """So that a million of them stay below 500 MB, however long their text."""
    rows = 20_000
    on_gpu = {"device": 0, "stream": 7, "correlation": 1, "padding": "x" * 300}
    events = [event("kernel", f"kernel {i % 50}", i, 1, **on_gpu) for i in range(rows)]
    path = save(tmp_path / "t.json", events)
    del events
    tracemalloc.start()
    trace = read_kineto(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(trace.work) == rows
    assert peak / rows < 500
