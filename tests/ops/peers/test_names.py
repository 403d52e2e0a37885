"""What may stand after ``--backend``, and what is said of anything else."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsv4kv.errors import ConfigError
from dsv4kv.ops import reference
from dsv4kv.ops.registry import resolve_backend
from dsv4kv.ops.spec import OPERATIONS

Write = Callable[..., None]
CPU = torch.device("cpu")

GATHER_ALL = "def gather_all(store, table, slots, lengths, out): out.fill_(7)\n"
CHOICES = ", ".join(OPERATIONS)


def refusal(name: str, base: str = "cpu") -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_backend(name, base)
    return str(caught.value)


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    assert refusal("abacus") == (
        "no backend 'abacus': choose reference, cpu, cuda, vllm, sglang, flashmla, deepgemm, or a "
        "function, as my_gather.py:gather_topk or my_package.my_module:gather_topk."
    )


@pytest.mark.parametrize("attribute", ["", "both", "space.both"])
def test_a_module_or_object_brings_its_operations_and_the_rest_is_the_bases(
    attribute: str, write_module: Write
) -> None:
    write_module(
        "deep.er.mine",
        "from types import SimpleNamespace\n"
        "def page_copy(store, sources, targets): pass\n"
        f"{GATHER_ALL}"
        "both = SimpleNamespace(gather_all=gather_all, page_copy=page_copy, flush=None)\n"
        "space = SimpleNamespace(both=both)\n",
    )
    resolved = resolve_backend(f"deep.er.mine:{attribute}", "reference")
    assert sorted(resolved.foreign) == ["gather_all", "page_copy"]
    for operation in OPERATIONS:
        own = getattr(resolved.backend, operation) is getattr(reference, operation)
        assert own == (operation not in resolved.foreign)


REFUSALS = {
    "mine:nothing": "mine has no 'nothing'.",
    "mine:other": f"other has no operation's name: name it one of {CHOICES}.",
    "mine:Both": (
        "gather_all is called with (store, table, slots, lengths, out), by position, and this "
        "function takes (self, store, table, slots, lengths, out)."
    ),
    "gather_all=mine:other": "'gather_all=mine' is no module name: write my_gather.py:",
    "mine:page_copy": (
        "page_copy is called with (store, sources, targets), by position, and this function takes "
        "(store)."
    ),
    "leaves:x": "importing leaves failed (SystemExit in leaves.py:1: 0).",
    "mine:typo.gather_all": (
        "its formats are ('fp8_ds_mlb',): a tuple of names out of bf16, fp4, fp4_interleaved, "
        "fp8, fp8_ds_mla, fp8_group32, fp8_group32_interleaved, mxfp4 is needed."
    ),
    "mine.deeper:x": "no module 'mine.deeper' is installed.",
    "absent:x": "no module 'absent' is installed.",
    "absent.py:x": "there is no file absent.py.",
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
    write_module("leaves", "raise SystemExit(0)")
    write_module("broken", "import absent_too")
    write_module("syntax", "def def")
    write_module(
        "mine",
        "from types import SimpleNamespace\n"
        f"{GATHER_ALL}"
        "gather_all.formats = ('fp8_ds_mlb',)\n"
        "typo = SimpleNamespace(gather_all=gather_all)\n"
        "def other(a, b): pass\n"
        "def page_copy(store): pass\n"
        "class Both:\n"
        "    def gather_all(self, store, table, slots, lengths, out): pass\n",
    )
    assert refusal(name).startswith(f"backend {name!r}: {REFUSALS[name]}")


@pytest.mark.parametrize("name", ["./mine.py:", "{}/mine.py:both.it"])
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


def test_a_function_that_takes_some_formats_is_called_for_these_alone(write_module: Write) -> None:
    write_module("mine", f"{GATHER_ALL}gather_all.formats = ['mxfp4', 'bf16']\n")
    resolved = resolve_backend("mine:gather_all", "cpu")
    assert resolved.formats == ("bf16", "mxfp4")
    assert resolved.serves("gather_all", "mxfp4")
    assert not resolved.serves("gather_all", "fp8_ds_mla")
    assert not resolved.serves("gather_topk", "mxfp4")
