"""Compiled kernels on disk: found again, never out of date, never damaged."""

import hashlib
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4kv.errors import DeviceError
from dsv4kv.ops.cuda import compile as cubin_cache
from dsv4kv.ops.cuda.compile import cache_folder, cache_name, compile_module, load_cubins
from dsv4kv.ops.launches.launch import KernelModule
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
    for remembered in (
        cubin_cache._warn_once,
        cubin_cache._warn_foreign,
        cubin_cache._sources_digest,
    ):
        remembered.cache_clear()
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


def test_modules_come_in_the_order_they_are_asked_for(compiler: Compiler) -> None:
    first, second, third = PAGE_COPIES
    alone = [load_cubin(module, SM) for module in (first, second)]
    one, other, *rest = load_cubins([third, second, first, second], SM)
    assert [other, *rest] == [alone[1], alone[0], alone[1]]
    assert str(third).encode() in one
    assert compiler.runs == 3


def test_modules_that_are_not_there_are_compiled_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = threading.Barrier(2, timeout=60)

    def compile_together(module: KernelModule, architecture: str) -> bytes:
        both.wait()
        return str(module).encode()

    monkeypatch.setattr(cubin_cache, "compile_module", compile_together)
    monkeypatch.setattr(cubin_cache, "nvrtc_version", lambda: "13.0")
    modules = PAGE_COPIES[:2]
    assert load_cubins(modules, SM) == [str(module).encode() for module in modules]


def test_of_modules_the_one_that_does_not_compile_is_told(
    monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    def refuse(module: KernelModule, architecture: str) -> bytes:
        if module == PAGE_COPIES[1]:
            raise DeviceError("no such thing")
        return compiler(module, architecture)

    monkeypatch.setattr(cubin_cache, "compile_module", refuse)
    with pytest.raises(DeviceError, match="no such thing"):
        load_cubins(PAGE_COPIES, SM)
    assert cache_name(PAGE_COPIES[0], SM) in [path.name for path in kept()]


def test_a_file_name_tells_source_and_architecture(compiler: Compiler) -> None:
    assert cache_name(PAGE_COPY, SM).startswith("page_copy-sm_90a-")


@pytest.mark.parametrize("change", ["macro", "architecture", "nvrtc", "source"])
def test_whatever_changes_machine_code_has_another_name(
    change: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, module, architecture = cache_name(PAGE_COPY, SM), PAGE_COPY, SM
    if change == "macro":
        module = replace(PAGE_COPY, macros=(("DSV_PAGE_BYTES", 2304),))
    elif change == "architecture":
        architecture = "sm_80"
    elif change == "nvrtc":
        monkeypatch.setattr(cubin_cache, "nvrtc_version", lambda: "13.1")
    else:
        (tmp_path / "common.cuh").write_text("// changed")
        monkeypatch.setattr(cubin_cache, "shipped", lambda _: tmp_path)
        cubin_cache._sources_digest.cache_clear()
    assert cache_name(module, architecture).split("-")[2] != before.split("-")[2]


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


def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that nobody can make, root included: its parent is a file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSV4KV_CACHE_DIR", str(tmp_path / "file"))
    return tmp_path / "file" / "cubin"


def test_a_read_only_folder_is_told_once_and_the_temporary_one_taken(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = unwritable(tmp_path, monkeypatch)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load_cubin(PAGE_COPY, SM)
        load_cubin(PAGE_COPY, "sm_80")
    spare = tmp_path / "temporary" / f"dsv4kv-cubin-{os.getuid()}"
    (warning,) = told
    assert str(warning.message) == (
        f"{folder} cannot be written (Not a directory): compiled kernels are kept in {spare} "
        "where possible; name another folder with DSV4KV_CACHE_DIR."
    )
    assert spare.stat().st_mode & 0o777 == 0o700
    load_cubin(PAGE_COPY, SM)
    assert compiler.runs == 2


def test_a_temporary_folder_that_others_can_write_is_not_trusted(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unwritable(tmp_path, monkeypatch)
    spare = tmp_path / "temporary" / f"dsv4kv-cubin-{os.getuid()}"
    spare.mkdir()
    spare.chmod(0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_cubin(PAGE_COPY, SM)
        load_cubin(PAGE_COPY, SM)
    assert compiler.runs == 2
    assert list(spare.iterdir()) == []


def make_writable(path: Path) -> None:
    path.chmod(0o777)


def make_sticky(path: Path) -> None:
    path.chmod(0o1777)


def make_foreign(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(path, 12345, 12345)


def make_link(path: Path) -> None:
    """What the path was lies elsewhere, and a link to it in its place."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (make_writable, "others can write to it"),
        (make_sticky, "others can write to it"),
        (make_foreign, "it belongs to another user"),
        (make_link, "it is a link"),
    ],
)
def test_what_others_may_have_put_there_is_compiled_anew_with_a_sentence(
    what: str, spoil: Callable[[Path], None], reason: str, compiler: Compiler
) -> None:
    first = load_cubin(PAGE_COPY, SM)
    (path,) = kept()
    spoiled = path if what == "file" else path.parent
    spoil(spoiled)
    with pytest.warns(RuntimeWarning, match="not trusted") as told:
        assert load_cubin(PAGE_COPY, SM) != first
    assert compiler.runs == 2
    assert str(told[0].message) == (
        f"{spoiled} is not trusted ({reason}): nothing there is loaded and kernels are compiled "
        "anew; make folder and files this user's alone (chmod 700), or name another folder with "
        "DSV4KV_CACHE_DIR."
    )


def test_a_good_file_under_the_name_of_another_is_not_loaded(compiler: Compiler) -> None:
    load_cubins(PAGE_COPIES[:2], SM)
    one, other = (cache_folder() / cache_name(module, SM) for module in PAGE_COPIES[:2])
    one.replace(other)
    assert b"16" in load_cubin(PAGE_COPIES[1], SM)
    assert compiler.runs == 3


def test_a_loose_umask_does_not_make_the_cache_untrusted(compiler: Compiler) -> None:
    before = os.umask(0)
    try:
        load_cubin(PAGE_COPY, SM)
    finally:
        os.umask(before)
    load_cubin(PAGE_COPY, SM)
    assert compiler.runs == 1


def test_the_folder_follows_the_platforms_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DSV4KV_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "dsv4kv" / "cubin"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "dsv4kv" / "cubin"


def test_a_user_without_a_home_uses_the_temporary_folder(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("DSV4KV_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    load_cubin(PAGE_COPY, SM)
    load_cubin(PAGE_COPY, SM)
    assert compiler.runs == 1
    assert cache_folder().is_relative_to(tmp_path / "temporary")


def compile_twice_at_once(folder: str) -> None:
    """Print the digest of what each of two processes got."""
    os.environ["DSV4KV_CACHE_DIR"] = folder
    other = os.fork()
    cubins = load_cubins(PAGE_COPIES, SM)
    print(hashlib.sha256(b"".join(cubins)).hexdigest(), flush=True)
    if other:
        assert os.waitpid(other, 0)[1] == 0


@needs_nvrtc
def test_processes_that_compile_at_once_all_get_the_same_and_leave_one_file_each() -> None:
    call = f"compile_twice_at_once({os.environ['DSV4KV_CACHE_DIR']!r})"
    ((code, said),) = run_each_apart(__name__, [call])
    assert code == 0, said
    first, second = said.split()
    assert first == second
    assert [path.name for path in kept()] == sorted(cache_name(each, SM) for each in PAGE_COPIES)


@needs_nvrtc
def test_the_cache_gives_back_what_the_compiler_made() -> None:
    assert load_cubin(PAGE_COPY, SM) == load_cubin(PAGE_COPY, SM) == compile_module(PAGE_COPY, SM)
