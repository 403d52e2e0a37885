"""Chrome traces of torch.profiler, of GPUs and of CPUs."""

import json
import tracemalloc
from pathlib import Path

import pytest
import torch

from dsv4kv.errors import ProfileError
from dsv4kv.profile.kineto import ChromeFile, read_kineto
from dsv4kv.profile.trace import NONE
from tests.profile.traces import event, gpu_events, save, told


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "events alone"])
def test_work_of_a_gpu_is_told_with_step_and_phase(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / name, gpu_events())
    if name == "events alone":
        path.write_text(json.dumps(gpu_events()))
    trace = read_kineto(path)
    a_step = [
        ("kernel", "flush"), ("kernel", "gather_topk"),
        ("memcpy", "Memcpy HtoD (Pinned -> Device)"),
    ]  # fmt: skip
    steps = [(kind, title, step, "replay") for step in (0, 1) for kind, title in a_step]
    assert told(trace) == [*steps, ("kernel", "lost", NONE, None)]
    assert trace.devices == ({} if name == "events alone" else {0: "A GPU"})
    assert trace.calls.step.tolist() == [0, 1]
    assert trace.work.bytes[:3].tolist() == [NONE, NONE, 64]


def test_ranks_in_one_file_have_steps_and_gpus_of_their_own(tmp_path: Path) -> None:
    """As SGLang merges them: every rank counts its launches anew."""
    events = []
    for rank in range(2):
        for one in gpu_events()[:-1]:
            one["args"] |= {"device": rank} if "device" in one["args"] else {}
            events.append({**one, "pid": f"[TP{rank:02}] {one['pid']}"})
    gpus = [{"id": 0, "name": "A GPU"}, {"id": 1, "name": "another"}]
    path = save(tmp_path / "t.json.gz", events, head={}, after={"deviceProperties": gpus})
    trace = read_kineto(path)
    assert trace.work.step.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert trace.work.device.tolist() == [0] * 6 + [1] * 6
    assert trace.devices == {0: "A GPU", 1: "another"}


@pytest.mark.parametrize("wrong", [{"dur": None}, {"ts": None}, {"ts": "soon"}, {"dur": 1e400}])
def test_events_without_a_time_are_left_out(wrong: dict[str, object], tmp_path: Path) -> None:
    events = gpu_events()
    events[3] |= wrong
    for name in wrong:
        del events[4][name]
    trace = read_kineto(save(tmp_path / "t.json", events))
    assert len(trace.work) == 5
    assert trace.warnings == ["omitted: 2 events that have no start time or no duration"]


def of_torch(path: Path, name: str) -> Path:
    """A trace of three ranges, with call stacks."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, with_stack=True) as profile:
        for _ in range(3):
            with torch.profiler.record_function(name):
                torch.ones(4).sort()
    profile.export_chrome_trace(str(path))
    return path


def test_a_trace_of_torch_is_read_as_json_reads_it(tmp_path: Path) -> None:
    path = of_torch(tmp_path / "t.json", "a step },{ of it")
    assert list(ChromeFile(path)) == json.loads(path.read_text())["traceEvents"]
    trace = read_kineto(path, "a step },{ of it")
    assert (len(trace.steps_ns), trace.warnings) == (3, [])
    assert "aten::sort" in trace.names


def test_names_that_torch_writes_with_quotes_are_left_out_and_told(tmp_path: Path) -> None:
    path = of_torch(tmp_path / "t.json", "a step of it")
    path.write_text(path.read_text().replace("a step of it", 'a "step" of it'))
    trace = read_kineto(path)
    assert trace.warnings == ["omitted: 3 events that are no JSON, as with quotes in their names"]
    assert "aten::sort" in trace.names


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"a": 1}', "has no traceEvents"),
        ('{"traceEvents": [{"ph": "X"}, ', "damaged or cut short"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "no kernel and no operation"),
        ('{"traceEvents": [{"ph": "X", "name": "fusion_1", "ts": 1, "dur": 2}]}', "no trace of"),
        ("\x00\x01", "has no traceEvents"),
        ('{"traceEvents": [{"ph": "X", "a": ' + "[" * 5_000, "^.*t.json "),
        ('{"traceEvents": [{"ph": "X", "a": ' + "9" * 5_000 + ", ", "^.*t.json "),
    ],
)
def test_what_is_no_trace_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(ProfileError, match=sentence):
        read_kineto(path)


def test_a_file_of_events_that_are_no_json_is_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + '{\n"ph"\n  },' * 10_001 + "]}")
    with pytest.raises(ProfileError, match="over 10,000 events that are no JSON"):
        read_kineto(path)


@pytest.mark.parametrize(
    "odd",
    ['"}, {\\"ph\\": 1"', '[{"a": 1},\n{"a": 2}], "more": "]"', "nan", '"\t\\ud800"', "1e400"],
)
@pytest.mark.parametrize("size", [50, 700, 1 << 18])
@pytest.mark.parametrize("indent", [None, 2])
def test_odd_events_are_read_as_json_reads_them(
    odd: str, size: int, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [{"ph": "M", "name": 1}, {"ph": "M", "name": 2}]
    events = [*gpu_events()[:4], event("kernel", "odd", 150, 5, odd="HERE"), *gpu_events()[4:]]
    path = save(tmp_path / "t.json", events, indent=indent, after={"others": others})
    text = path.read_text().replace('"HERE"', odd)
    path.write_text(text)
    monkeypatch.setattr("dsv4kv.profile.kineto._CHUNK", size)
    expected = json.loads(text.replace(" nan", " NaN"), strict=False)["traceEvents"]
    assert repr(list(ChromeFile(path))) == repr(expected)


def test_an_event_needs_less_than_500_bytes_of_memory(tmp_path: Path) -> None:
    """So that a million of them stay below 500 MB, however long their text."""
    rows = 10_000
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


def test_names_may_hold_any_bytes(tmp_path: Path) -> None:
    path = save(tmp_path / "t.json", gpu_events())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"lost", b"l\xff\tst"))
    assert "l\ufffd\tst" in read_kineto(path).names
