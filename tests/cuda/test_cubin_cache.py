"""Compiled kernels on disk: found again, never out of date, never damaged."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4kv.files import shipped
from dsv4kv.ops.cuda import compile as cubin_cache
from dsv4kv.ops.cuda.compile import cache_folder, cache_name, load_cubins
from dsv4kv.ops.launches import KernelModule
from tests.cuda.toolchain import PAGE_COPY, needs_nvrtc
from tests.kernels.shim.apart import run_each_apart

SM = "sm_90a"
PAGE_COPIES = [
    PAGE_COPY,
    *(replace(PAGE_COPY, macros=(("DSV_PAGE_BYTES", size),)) for size in (16, 2176)),
]


def load_cubin(module: KernelModule, architecture: str) -> bytes:
    (cubin,) = load_cubins([module], architecture)
    return cubin


class Compiler:
    """Stands for NVRTC: its cubins count the compilations."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, module: KernelModule, architecture: str) -> bytes:
        self.runs += 1
        return f"\x7fELF {module} {architecture} {self.runs}\n".encode()


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders of this test alone; everything kept in memory forgotten."""
    monkeypatch.setenv("DSV4KV_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    cubin_cache._warn.cache_clear()
    cubin_cache._sources_digest.cache_clear()
    yield
    cubin_cache._sources_digest.cache_clear()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler()
    monkeypatch.setattr(cubin_cache, "compile_module", compiler)
    monkeypatch.setattr(cubin_cache, "nvrtc_version", lambda: "13.0")
    return compiler


def kept() -> list[Path]:
    return sorted(cache_folder().iterdir())


def test_what_was_compiled_once_is_read_afterwards(compiler: Compiler) -> None:
    first = load_cubin(PAGE_COPY, SM)
    assert load_cubin(PAGE_COPY, SM) == first
    assert compiler.runs == 1
    assert [path.name for path in kept()] == [cache_name(PAGE_COPY, SM)]


@pytest.mark.parametrize(
    ("changed", "compiled"), [("query", 1), ("hadamard", 1), ("common", 1), ("gather", 0)]
)
def test_a_change_of_a_source_compiles_what_includes_it(
    changed: str,
    compiled: int,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    kernels = shutil.copytree(shipped("kernels"), tmp_path / "kernels")
    monkeypatch.setattr(cubin_cache, "shipped", lambda _: kernels)
    query = KernelModule("query.cuh", ())
    load_cubin(query, SM)
    with (kernels / f"{changed}.cuh").open("a") as file:
        file.write("// changed")
    cubin_cache._sources_digest.cache_clear()
    load_cubin(query, SM)
    assert compiler.runs == 1 + compiled


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "foreign"])
def test_a_damaged_file_is_compiled_again_and_replaced(damage: str, compiler: Compiler) -> None:
    load_cubin(PAGE_COPY, SM)
    (path,) = kept()
    content = bytearray(path.read_bytes())
    whole = bytes(content)
    content[-2] ^= 1
    damaged = {"cut": whole[:-1], "flipped": bytes(content), "emptied": b"", "foreign": b"\x7fELF"}
    path.write_bytes(damaged[damage])
    again = load_cubin(PAGE_COPY, SM)
    assert compiler.runs == 2
    assert load_cubin(PAGE_COPY, SM) == again
    assert compiler.runs == 2


def test_a_folder_that_cannot_be_written_is_told_once(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSV4KV_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning) as told:
        load_cubins([PAGE_COPY], SM)
    load_cubin(PAGE_COPY, SM)
    (warning,) = told
    assert str(warning.message) == (
        f"{tmp_path}/file/cubin cannot be written (Not a directory): kernels are compiled in "
        "every process; make it this user's alone (chmod 700), or name another with "
        "DSV4KV_CACHE_DIR."
    )
    assert compiler.runs == 2


@pytest.mark.parametrize("how", [0o777, 0o1777, "foreign", "link"])
def test_of_a_folder_that_others_can_write_nothing_is_loaded(
    how: int | str, compiler: Compiler
) -> None:
    first = load_cubin(PAGE_COPY, SM)
    if isinstance(how, int):
        cache_folder().chmod(how)
    elif how == "link":
        target = cache_folder().rename(cache_folder().with_name("elsewhere"))
        cache_folder().symlink_to(target)
    elif os.geteuid():
        pytest.skip("only root can give files away")
    else:
        os.chown(cache_folder(), 12345, 12345)
    with pytest.warns(RuntimeWarning, match="is not trusted, as others can write to it"):
        assert load_cubin(PAGE_COPY, SM) != first
    assert compiler.runs == 2


def test_a_good_file_under_the_name_of_another_is_not_loaded(compiler: Compiler) -> None:
    load_cubins(PAGE_COPIES[:2], SM)
    one, other = (cache_folder() / cache_name(module, SM) for module in PAGE_COPIES[:2])
    one.replace(other)
    assert b"16" in load_cubin(PAGE_COPIES[1], SM)
    assert compiler.runs == 3


def compile_twice_at_once(folder: str) -> None:
    """Print the digest of what each of two processes got."""
    os.environ["DSV4KV_CACHE_DIR"] = folder
    other = os.fork()
    cubins = load_cubins(PAGE_COPIES, SM)
    if other:  # prints last: an unbuffered print is two writes, which may mix
        assert os.waitpid(other, 0)[1] == 0
    print(hashlib.sha256(b"".join(cubins)).hexdigest(), flush=True)


@needs_nvrtc
def test_processes_that_compile_at_once_all_get_the_same_and_leave_one_file_each() -> None:
    call = f"compile_twice_at_once({os.environ['DSV4KV_CACHE_DIR']!r})"
    ((code, said),) = run_each_apart(__name__, [call])
    assert code == 0, said
    first, second = said.split()
    assert first == second
    assert [path.name for path in kept()] == sorted(cache_name(each, SM) for each in PAGE_COPIES)
