"""The options of ``dsv4kv budget``: what can be asked, in the words of its help."""

from pathlib import Path
from typing import Annotated, Any

import typer


def _option(panel: str, metavar: str, text: str) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=panel)


def _ask(metavar: str, text: str) -> Any:
    return _option("Question", metavar, text)


def _gpu(metavar: str, text: str) -> Any:
    return _option("GPUs and layout", metavar, text)


def _cache(metavar: str, text: str) -> Any:
    return _option("Cache", metavar, text)


def _output(metavar: str, text: str) -> Any:
    return _option("Output", metavar, text)


def _flag(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Output")


_MODEL = (
    "v4-flash (the default), v4-pro, v4.1-flash, v3.2, gqa8 (a baseline with 8 KV heads), or a "
    "Hugging Face config.json."
)
_CONTEXT = (
    "Tokens of every request: 128K, 1M. Left out: the model's limit, or the most that fit the "
    "concurrency."
)
_ENGINE = (
    "Whose rules size the cache: dsv4kv (the default), vllm, sglang, trtllm, or a version: "
    "vllm:0.33."
)
_IN_FLIGHT = (
    "Tokens of one step (max_num_batched_tokens, chunked_prefill_size), times the steps that "
    "overlap: 8192 unless given."
)
_STATE = "Compressor state: fp32 (the default), bf16, online (HCA as a running softmax)."
_FRACTION = "Share of a GPU's memory that may be used: 0.9 unless given."
_RESERVE = "Kept on every GPU for activations, graphs, communication: 4GiB unless given."
_EP = "Ranks of a stage that share the routed experts. Left out: all of them, with replicas."
_EXPLAIN = "Explain the sizes in a start-up log of vLLM or SGLang; two logs are compared."

Text = str | None
Logs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[LOG]", help="With --explain: a second log to compare with."),
]
Model = Annotated[Text, _ask("NAME|FILE", _MODEL)]
Context = Annotated[Text, _ask("TOKENS", _CONTEXT)]
Concurrency = Annotated[Text, _ask("N", "Requests at once. Left out: as many as fit.")]
EngineName = Annotated[Text, _ask("NAME", _ENGINE)]

Gpu = Annotated[Text, _gpu("NAME", "A name of the catalogue: h200 (the default), b200, mi300x, …")]
Hbm = Annotated[Text, _gpu("SIZE", "Memory of a GPU instead: 141GiB.")]
Gpus = Annotated[Text, _gpu("N", "GPUs. Left out: the fewest that are enough.")]
Tp = Annotated[Text, _gpu("N", "Tensor parallel ranks; each holds the whole KV of its replica.")]
Dp = Annotated[Text, _gpu("N", "Data parallel replicas, each with requests of its own.")]
Pp = Annotated[Text, _gpu("N", "Pipeline stages, each with a share of the layers.")]
Ep = Annotated[Text, _gpu("N", _EP)]
MemoryFraction = Annotated[Text, _gpu("SHARE", _FRACTION)]
Reserve = Annotated[Text, _gpu("SIZE", _RESERVE)]
Weights = Annotated[Text, _gpu("SIZE", "Size of the checkpoint. Left out: derived.")]
WeightBytes = Annotated[Text, _gpu("BYTES", "Bytes of every parameter, instead of derived types.")]

BlockTokens = Annotated[Text, _cache("TOKENS", "Tokens of a block. Left out: the engine's own.")]
MainFormat = Annotated[Text, _cache("NAME", "Compressed entries: fp8_ds_mla, bf16, fp8, fp4.")]
WindowFormat = Annotated[
    Text, _cache("NAME", "Window entries: fp8_ds_mla, bf16, fp8, fp8_group32.")
]
IndexerFormat = Annotated[Text, _cache("NAME", "Indexer keys: mxfp4, fp8, bf16.")]
State = Annotated[Text, _cache("NAME", _STATE)]
DraftLayers = Annotated[
    Text, _cache("N", "Draft (MTP) layers that hold a window: 0 unless given.")
]
DraftTokens = Annotated[
    Text, _cache("N", "Speculative tokens that may be rolled back: 0 unless given.")
]
InFlightTokens = Annotated[Text, _cache("TOKENS", _IN_FLIGHT)]

Axes = Annotated[
    list[str] | None,
    _output("NAME=A,B,…", "Sweep an option: context=4K,32K,128K; repeatable."),
]
Verbose = Annotated[bool, _flag("Tell every pool, layout and option.", "--verbose", "-v")]
AsJson = Annotated[bool, _flag("Print one JSON document instead.", "--json")]
Csv = Annotated[Path | None, _output("FILE", "Write a sweep as CSV.")]
ChartFile = Annotated[
    Path | None, _output("FILE", "Draw a sweep: FILE.svg, or FILE.html with its table.")
]
Explain = Annotated[list[Path] | None, _output("LOG", _EXPLAIN)]
