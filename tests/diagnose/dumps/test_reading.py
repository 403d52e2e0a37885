"""Dumps of every kind are read, and hostile ones are refused with a sentence."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.diagnose.records import MOST_BYTES, read_dump, read_table
from dsv4kv.errors import TraceError

PAGES = np.arange(4 * 96, dtype=np.uint8).reshape(4, 96)


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(dtype: str, shape: list[int], *offsets: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def npy(shape: str, dtype: str = "'|u1'") -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def test_every_kind_of_file_gives_its_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", PAGES)
    np.save(tmp_path / "b.npy", PAGES.view(np.float16))
    entry = {"kv": tensor("U8", [4, 96], 0, 384)}
    (tmp_path / "e.safetensors").write_bytes(safetensors(entry, PAGES.tobytes()))
    (tmp_path / "f.bin").write_bytes(PAGES.tobytes())
    for name in "abef":
        (path,) = tmp_path.glob(f"{name}.*")
        dump = read_dump(path)
        assert dump.data.tobytes() == PAGES.tobytes()
        assert dump.shape == ((384,) if name == "f" else (4, 96))


HOSTILE = {
    "empty.npy": (b"", "is empty"),
    "huge.npy": (npy("(1 << 60,)"), "has no header of numpy.save"),
    "large.npy": (npy("(4503599627370496, 4096)"), "it holds 18,446,744,073,709,551,616"),
    "negative.npy": (npy("(-4, -96)") + PAGES.tobytes(), "shape is (-4, -96)"),
    "open.npy": (npy("(" * 5_000), "has no header of numpy.save"),
    "words.npy": (npy("'" + "x" * 50_000), "has no header of numpy.save"),
    "dims.npy": (npy("(" + "1, " * 10_000 + ")"), "has no header of numpy.save"),
    "digits.npy": (npy(f"(1 << 9, {'9' * 4_000})"), "has no header of numpy.save"),
    "zero.npy": (npy("(0, 584)"), "holds 0 B: give 1 to"),
    "cut.npy": (npy("(4, 96)") + PAGES.tobytes()[:-1], "384 B, and holds 383 B"),
    "objects.npy": (npy("(4,)", "'|O'") + pickle.dumps([1]), "Python objects"),
    "pickle.pkl": (pickle.dumps([1]), "a pickle runs code when it is read: save tensors as"),
    "long.safetensors": (b"\xff" * 16, "a header of 18,446,744,073,709,551,615 B"),
    "text.safetensors": (safetensors(b"{" * 32), "its header is no JSON"),
    "beyond.safetensors": (
        safetensors({"a": tensor("U8", [9], 0, 9)}, b"1234"), "said to be where the file is not",
    ),
    "wrong.safetensors": (
        safetensors({"a": tensor("F32", [9], 0, 4)}, b"1234"), "it holds 36 B, and holds 4 B",
    ),
    "bound.safetensors": (
        safetensors(b'{"a": {"dtype": "U8", "shape": [1e999], "data_offsets": [0, 9]}}', b"1" * 9),
        "has no dtype, shape and offsets",
    ),
    "none.safetensors": (safetensors({}), "holds no tensor"),
    "name.safetensors": (safetensors({"n" * 50_000: {}}), "has no dtype, shape and offsets"),
    "names.safetensors": (
        safetensors({f"{n}{'n' * 500}": tensor("U8", [1], 0, 1) for n in range(900)}, b"1"),
        "has 900 tensors: name one with --tensor",
    ),
    "torch.pt": (b"PK\x03\x04", "numpy.save(FILE, tensor.view(torch.uint8).cpu().numpy())"),
    "archive.zip": (b"PK\x03\x04", "as torch.save writes it"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    content, sentence = HOSTILE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError) as refusal:
        read_dump(tmp_path / name)
    assert sentence in str(refusal.value)
    assert name in str(refusal.value)
    assert len(str(refusal.value)) < len(str(tmp_path)) + 600


def test_a_sparse_file_is_refused_before_its_zeros_are_read(tmp_path: Path) -> None:
    with (tmp_path / "tier.bin").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(TraceError, match="holds 68,719,476,737 B: give 1 to"):
        read_dump(tmp_path / "tier.bin")


def test_one_of_several_tensors_is_named(tmp_path: Path) -> None:
    entries = {"a": tensor("F32", [3], 0, 12), "b": tensor("F32", [2], 12, 20)}
    path = tmp_path / "two.safetensors"
    path.write_bytes(safetensors(entries, bytes(20)))
    with pytest.raises(TraceError, match="has 2 tensors: name one with --tensor: a, b"):
        read_dump(path)
    with pytest.raises(TraceError, match="has no tensor 'c': it has a, b"):
        read_dump(path, "c")
    assert read_dump(path, "b").shape == (8,)


_INSPECT = """
import sys
from typer.testing import CliRunner
from dsv4kv.cli import app
for path in sys.argv[1:]:
    done = CliRunner().invoke(app, ["inspect", path])
    assert done.exit_code == 4 and path in done.stderr, done.stderr
"""


def test_a_small_file_costs_neither_memory_nor_time(tmp_path: Path) -> None:
    """All of them in one process of 1 GiB and 60 s."""
    length, shape = tmp_path / "length.npy", tmp_path / "shape.safetensors"
    length.write_bytes(b"\x93NUMPY\x02\0\xff\xff\xff\x7f")
    os.truncate(length, 2**31 + 100)
    shape.write_bytes(safetensors({"a": tensor("U8", [2**61] * 200_000, 0, 9)}, b"123456789"))
    bounded = 'ulimit -d 1048576; ulimit -t 60; exec "$0" "$@"'  # KiB, seconds of the processor
    command = [sys.executable, "-P", "-c", _INSPECT, str(length), str(shape)]
    subprocess.run(["sh", "-c", bounded, *command], check=True)


@pytest.mark.parametrize("name", ["", "fifo", "absent"])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    if name == "fifo":
        os.mkfifo(tmp_path / name)
    with pytest.raises(TraceError, match=r"director|pipe|No such"):
        read_dump(tmp_path / name)


def test_a_table_names_pages_that_there_are(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([[2, 0], [1, 3]], np.int32))
    assert read_table(tmp_path / "t.npy", 4).tolist() == [2, 0, 1, 3]
    with pytest.raises(TraceError, match=r"names 4 pages, and the dump has 3"):
        read_table(tmp_path / "t.npy", 3)
    np.save(tmp_path / "t.npy", np.array([2, 4], np.int32))
    with pytest.raises(TraceError, match=r"names page 4: the dump has pages 0 … 3"):
        read_table(tmp_path / "t.npy", 4)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("huge.npy", npy("(4503599627370496, 512)")), ("many.npz", b"PK\x03\x04"),
        ("true.npy", npy("(2,)", "'|b1'") + b"\0\1"), ("table.json", b"[2, 0, 1]"),
    ],
)  # fmt: skip
def test_a_hostile_table_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match="is no table of pages"):
        read_table(tmp_path / name, 3)
