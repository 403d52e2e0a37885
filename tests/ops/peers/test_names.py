"""What may stand after ``--backend``, and what is said of anything else."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from dsv4kv.choices import BACKENDS
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.ops import reference
from dsv4kv.ops.registry import resolve_backend
from dsv4kv.ops.scenes import make_call, on_pages
from dsv4kv.ops.spec import OPERATIONS

Write = Callable[..., None]
CPU = torch.device("cpu")

GATHER_ALL = "def gather_all(store, table, slots, lengths, out): out.fill_(7)\n"
RENAMED = GATHER_ALL.replace("gather_all", "fast")
CHOICES = ", ".join(OPERATIONS)


def refusal(name: str, base: str = "cpu") -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_backend(name, base)
    return str(caught.value)


@pytest.mark.parametrize("name", BACKENDS)
def test_our_own_backends_bring_nothing_foreign(name: str) -> None:
    resolved = resolve_backend(name, "reference")
    assert (resolved.name, resolved.foreign, resolved.version) == (name, (), None)
    assert resolved.backend is BACKENDS[name].load()


def test_an_unknown_name_is_refused_with_the_choices(
    write_module: Write, write_distribution: Write
) -> None:
    assert refusal("abacus") == (
        "no backend 'abacus': choose reference, cpu, cuda, vllm, sglang, flashmla, deepgemm, "
        "an installed entry point of dsv4kv.backends (there is none), or a function, as "
        "my_gather.py:gather_topk or my_package.my_module:my_gather."
    )
    write_distribution("mine", "1", swift="mine:fast")
    assert "an installed entry point of dsv4kv.backends (swift)," in refusal("abacus")


def test_what_a_name_does_not_bring_is_the_bases(write_module: Write) -> None:
    write_module("mine", GATHER_ALL)
    backend = resolve_backend("mine:gather_all", "reference").backend
    for operation in OPERATIONS:
        own = getattr(backend, operation) is getattr(reference, operation)
        assert own == (operation != "gather_all")


@pytest.mark.parametrize(
    "name", ["mine:gather_all", "mine:fast", "gather_all=mine:anything", "deep.er.mine:fast"]
)
def test_a_function_is_named_or_has_the_parameters_of_its_operation_or_is_told(
    name: str, write_module: Write
) -> None:
    source = GATHER_ALL + RENAMED + "def anything(*arguments): arguments[-1].fill_(7)\n"
    write_module("mine", source)
    write_module("deep.er.mine", source)
    resolved = resolve_backend(name, "cpu")
    call = make_call(
        partial(on_pages, "gather_all", PageLayout(FORMATS["main"]["bf16"], 2), False), CPU, 0
    )
    resolved.backend.gather_all(**call.arguments)
    assert resolved.foreign == ("gather_all",)
    assert bool((call.arguments["out"] == 7).all())


@pytest.mark.parametrize(
    ("attribute", "operations"),
    [
        ("", ["flush", "gather_all"]),
        ("Both", ["gather_all", "page_copy"]),
        ("both", ["gather_all", "page_copy"]),
        ("space.both", ["gather_all", "page_copy"]),
    ],
)
def test_a_module_class_or_object_brings_every_function_named_as_an_operation(
    attribute: str, operations: list[str], write_module: Write
) -> None:
    write_module(
        "mine",
        "from types import SimpleNamespace\n"
        "def flush(*arguments): pass\n"
        "class Both:\n"
        "    gather_window = None\n"
        "    def gather_all(self, store, table, slots, lengths, out): pass\n"
        "    def page_copy(self, store, sources, targets): pass\n"
        f"{GATHER_ALL}"
        "both = Both()\n"
        "space = SimpleNamespace(both=both)\n",
    )
    assert sorted(resolve_backend(f"mine:{attribute}", "cpu").foreign) == operations


REFUSALS = {
    "mine:nothing": "mine has no 'nothing'.",
    "mine:seven.x": "int has no 'x'.",
    "mine:other": (
        "neither its name nor its parameters match an operation: write "
        f"operation=mine:other with one of {CHOICES}."
    ),
    "gather=mine:other": "'gather' is no operation: choose window_insert, ",
    "gather_all=mine:other": (
        "gather_all is called with (store, table, slots, lengths, out), by position, and this "
        "function takes (a, b)."
    ),
    "mine:page_copy": (
        "page_copy is called with (store, sources, targets), by position, and this function takes "
        "(store)."
    ),
    "mine:Needy": (
        "Needy() failed (TypeError: Needy.__init__() missing 1 required positional argument: "
        "'size'): a class is made without arguments."
    ),
    "mine:Leaves": "Leaves() failed (SystemExit in mine.py:9: 0): a class is made ",
    "leaves:x": "importing leaves failed (SystemExit in leaves.py:1: 0).",
    "leaves.py:x": "importing leaves.py failed (SystemExit in leaves.py:1: 0).",
    "mine:typo": (
        "its formats are ('fp8_ds_mlb',): a tuple of names out of bf16, fp4, fp4_interleaved, "
        "fp8, fp8_ds_mla, fp8_group32, fp8_group32_interleaved, mxfp4 is needed."
    ),
    "mine.deeper:x": "no module 'mine.deeper' is installed.",
    "absent:x": "no module 'absent' is installed.",
    "absent.py:x": "there is no file absent.py.",
    ".py:x": "there is no file .py.",
    "a\0.py:x": "there is no file a\0.py.",
    f"{'long' * 99}.py:x": f"there is no file {'long' * 99}.py.",
    "./mine:x": "'./mine' is no module name: write my_gather.py:gather_topk for a file, ",
    ":x": "'' is no module name: write ",
    "broken:x": ("importing broken failed (ModuleNotFoundError in broken.py:1: No module named "),
    "syntax:x": "importing syntax failed (SyntaxError: invalid syntax ",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_loaded_is_refused_in_a_sentence(
    name: str, write_module: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("leaves.py").write_text("raise SystemExit(0)")
    write_module("leaves", "raise SystemExit(0)")
    write_module("broken", "import absent_too")
    write_module("syntax", "def def")
    write_module(
        "mine",
        f"{GATHER_ALL}{RENAMED}seven = 7\n"
        "def other(a, b): pass\n"
        "def page_copy(store): pass\n"
        "class Needy:\n"
        "    def __init__(self, size): pass\n"
        "class Leaves:\n"
        "    def __init__(self): raise SystemExit(0)\n"
        "def typo(store, table, slots, lengths, out): pass\n"
        "typo.formats = ('fp8_ds_mlb',)\n",
    )
    assert refusal(name).startswith(f"backend {name!r}: {REFUSALS[name]}")


def test_a_module_in_the_current_folder_is_a_file_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "lies_here.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert refusal("deep.lies_here:f") == (
        "backend 'deep.lies_here:f': no module 'deep.lies_here' is installed. "
        "For deep/lies_here.py in this folder write deep/lies_here.py:f."
    )


@pytest.mark.parametrize("name", ["mine.py:Both", "gather_all=./mine.py:", "{}/mine.py:both.it"])
def test_a_file_is_named_by_its_path_and_imported_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass, field\n"
        "@dataclass\n"
        "class Both:\n"
        "    it: 'Both | None' = None\n"
        "    def gather_all(self, store, table, slots, lengths, out): pass\n"
        "both = Both(Both())\n"
        f"{GATHER_ALL}"
        "with open('imports', 'a') as file: file.write('1')\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    for _ in range(2):
        resolved = resolve_backend(name.format(tmp_path), "cpu")
        assert resolved.foreign == ("gather_all",)
    assert (sys.path, Path("imports").read_text()) == (before, "1")


def test_a_file_s_neighbours_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import neighbour_of_it")
    (tmp_path / "neighbour_of_it.py").touch()
    monkeypatch.chdir(tmp_path)
    assert refusal("mine.py:x") == (
        "backend 'mine.py:x': importing mine.py failed (ModuleNotFoundError in mine.py:1: "
        "No module named 'neighbour_of_it')."
    )


def test_an_entry_point_is_a_backend_with_its_packages_version(
    write_module: Write, write_distribution: Write
) -> None:
    write_module("mine", GATHER_ALL + RENAMED + "def flush(*arguments): pass\n")
    write_distribution("my-kernels", "1.2", swift="mine:fast", whole="mine", told="mine:flush")
    resolved = resolve_backend("swift", "cpu")
    assert (resolved.foreign, resolved.version) == (("gather_all",), "1.2")
    assert set(resolve_backend("whole", "cpu").foreign) == {"gather_all", "flush"}
    assert resolve_backend("flush=told", "cpu").foreign == ("flush",)


def test_two_packages_with_one_name_are_refused(
    write_module: Write, write_distribution: Write
) -> None:
    write_distribution("one", "1", swift="mine:fast")
    write_distribution("two", "1", swift="mine:fast")
    assert refusal("swift") == (
        "backend 'swift': one and two both bring it: name the function itself, as "
        "my_package.my_module:my_gather."
    )


def test_a_function_that_takes_some_formats_is_called_for_these_alone(write_module: Write) -> None:
    write_module("mine", f"{GATHER_ALL}gather_all.formats = ['mxfp4', 'bf16']\n")
    resolved = resolve_backend("mine:gather_all", "cpu")
    assert resolved.formats == ("bf16", "mxfp4")
    assert resolved.serves("gather_all", "mxfp4")
    assert not resolved.serves("gather_all", "fp8_ds_mla")
    assert not resolved.serves("gather_topk", "mxfp4")
