# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""What vLLM 0.33.0's own dummy runs ask of its workspace: ``python vllm_workspaces.py FOLDER``.

A line of standard input is one setting: ``kind``, ``ratio``, ``context``, ``step`` (tokens),
``topk``, ``mxfp4``; the answer has the bytes of the workspace, as its manager adds them up, and of
the buffers of HCA indices. The methods are cut out of their files and run with stand-ins.
"""

import ast
import sys
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stand_ins import answer_lines

FILES = {
    "v4": ("models/deepseek_v4/nvidia/flashmla.py", "forward_mqa"),
    "v41": ("models/deepseek_v41/nvidia/flash_mla_mega_attn.py", "_reserve_prefill_workspace"),
}
SIZES = {"bf16": 2, "i32": 4, "i64": 8, "u8": 1, "f8": 1}


def cut(path: Path, name: str, within: str = "", **given: Any) -> Any:
    """A function or method of a file, with stand-ins for what it uses."""
    tree = ast.parse(path.read_text())
    if within:
        tree = next(node for node in tree.body if getattr(node, "name", "") == within)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.decorator_list = []
            node.body = [line for line in node.body if "super().__init__" not in ast.unparse(line)]
            code = "from __future__ import annotations\n" + ast.unparse(node)
            scope = dict(given)
            exec(compile(code, str(path), "exec"), scope)
            return scope[name]
    raise SystemExit(f"{path}: no {name}")


def up(value: int, step: int) -> int:
    return -(-value // step) * step


def answer(root: Path, asked: dict[str, Any]) -> dict[str, int]:
    """Bytes of the workspace and of HCA's buffers."""
    torch = SimpleNamespace(bfloat16="bf16", int32="i32", int64="i64", uint8="u8", Tensor=object)
    wanted = []

    def get_simultaneous(*tensors):
        wanted.append(sum(up(prod(shape) * SIZES[dtype], 256) for shape, dtype in tensors))

    manager = SimpleNamespace(get_simultaneous=get_simultaneous)
    context, step = asked["context"], asked["step"]
    layer = SimpleNamespace(
        compress_ratio=asked["ratio"], max_model_len=context, window_size=128,
        max_num_batched_tokens=step, max_image_tokens=0, PREFILL_CHUNK_SIZE=4,
        topk_indices_buffer=SimpleNamespace(shape=(step, asked["topk"])),
    )  # fmt: skip
    q = SimpleNamespace(shape=(step, 64, 512), dtype="bf16")
    if asked["kind"] in FILES:
        file, name = FILES[asked["kind"]]
        run = cut(root / file, name, torch=torch, round_up=up, cast=lambda _, value: value,
                  current_workspace_manager=lambda: manager,
                  get_forward_context=lambda: SimpleNamespace(attn_metadata=None))  # fmt: skip
        output = SimpleNamespace(zero_=lambda: None, shape=q.shape, dtype=q.dtype)
        given = [layer, q] if asked["kind"] == "v41" else [layer, q, None, None, output]
        run(*given[: run.__code__.co_argcount])
    factor = cut_factor(root / "config/vllm.py", context)
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=context),
        attention_config=SimpleNamespace(sparse_mla_prefill_workspace_factor=factor),
    )
    buffer = cut(root / "v1/attention/backends/mla/indexer.py", "get_max_prefill_buffer_size")
    shapes = cut(root / "model_executor/layers/sparse_attn_indexer.py",
                 "_gather_workspace_shapes", torch=torch, MXFP4_BLOCK_SIZE=32)  # fmt: skip
    keys = buffer(config) // asked["ratio"]
    get_simultaneous(*shapes(keys, 128, "f8", asked["mxfp4"]), ((1024 * 1024,), "u8"))
    return {"workspace": max(wanted), "hca": hca(root, asked) if asked["kind"] == "v4" else 0}


def cut_factor(path: Path, context: int) -> int:
    """The default of ``sparse_mla_prefill_workspace_factor``, as its expression says."""
    for node in ast.walk(ast.parse(path.read_text())):
        target = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if target == "self.attention_config.sparse_mla_prefill_workspace_factor":
            model = SimpleNamespace(max_model_len=context)
            return eval(ast.unparse(node.value), {"self": SimpleNamespace(model_config=model)})
    raise SystemExit(f"{path}: no default")


def hca(root: Path, asked: dict[str, Any]) -> int:
    """Bytes of the c128a buffers of its metadata builder."""
    made = []

    def empty(shape, *, dtype, device):
        shape = shape if isinstance(shape, tuple) else (shape,)
        made.append((prod(shape) * SIZES[dtype], "c128a"))

    torch = SimpleNamespace(empty=empty, int32="i32", int64="i64")
    builder = SimpleNamespace(_init_reorder_batch_threshold=lambda *_, **__: None)
    spec = SimpleNamespace(tokens_per_state=128)
    builder.kv_cache_spec = spec
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=asked["context"], hf_config=SimpleNamespace(index_topk=asked["topk"])
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=asked["step"]),
    )
    path = root / "models/deepseek_v4/sparse_mla.py"
    run = cut(path, "__init__", "DeepseekV4SparseMLAMetadataBuilder", torch=torch,
              cdiv=lambda a, b: -(-a // b), _C128A_TOPK_ALIGNMENT=128)  # fmt: skip
    given = {"self": builder, "kv_cache_spec": spec, "layer_names": [], "vllm_config": config,
             "device": None}  # fmt: skip
    run(**{name: given.get(name) for name in run.__code__.co_varnames[: run.__code__.co_argcount]})
    return sum(size for size, _ in made[2:])  # after ids and slots of a step's tokens


if __name__ == "__main__":
    answer_lines(lambda asked: answer(Path(sys.argv[1]) / "vllm", asked))
