"""The operations as torch operators: ``torch.ops.dsv4kv.gather_topk(…)`` and so on.

For ``torch.compile``, exported graphs and profilers that know operators. Importing this module
registers each of them for CPU, for CUDA and for tensors without data. An operator's arguments are
the contract's, except that a store goes as (pages, format such as ``main/fp8_ds_mla``, entries of
a page), a compressor as its fields without ``dim``, and ``Entries`` as its fields, all None where
there are none; of several parts each of these is a list.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

import torch

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FLAT_FORMATS, FORMATS, EntryFormat, PageLayout
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Backend, Entries, Parts, PartWrite
from dsv4kv.ops.registry import load_backend
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.table import OPERATIONS

FORMAT_NAMES: dict[str, EntryFormat] = {
    f"{place}/{name}": entry
    for place, formats in (*FORMATS.items(), ("flat", FLAT_FORMATS))
    for name, entry in formats.items()
}
"""What the format argument of an operator may be."""

_COMPRESSOR = (
    "Tensor ape, Tensor norm_weight, Tensor rope, int ratio, bool overlap, "
    "float norm_eps, bool hadamard, bool round_norm, bool round_rope"
)


_PARTS = (
    "Tensor[] apes, Tensor[] norm_weights, Tensor[] ropes, int[] ratios, "
    "bool[] overlaps, float[] norm_epses, bool[] hadamards, bool[] round_norms, "
    "bool[] round_ropes, Tensor(b!)[] states, Tensor[] kvs, "
    "Tensor[] scores, Tensor(c!)[] entry_pages, str[] formats, int[] pages_entries, "
    "Tensor[] entries"
)

_ENTRIES = (
    "Tensor? entry_pages, str? entry_format, int? entries_of_a_page, "
    "Tensor? table, Tensor? lengths, Tensor? indices"
)


def schema(operation: str) -> str:
    """The operator's arguments in torch's schema language, made from the contract."""
    letters = iter("abc")
    arguments = []
    for name, parameter in _parameters(operation):
        mark = f"({next(letters)}!)" if name in OPERATIONS[operation].writes else ""
        if parameter is PageStore:
            arguments.append(f"Tensor{mark} pages, str format, int page_entries")
        elif parameter is Compressor:
            arguments.append(_COMPRESSOR)
        elif parameter == Parts:
            arguments.append(_PARTS)
        elif parameter == Entries | None:
            arguments.append(_ENTRIES)
        elif parameter == torch.Tensor | None:
            arguments.append(f"Tensor? {name}")
        else:
            arguments.append(f"{parameter.__name__}{mark} {name}")
    return f"{operation}({', '.join(arguments)}) -> ()"


def flatten(operation: str, arguments: Iterable[Any]) -> tuple[Any, ...]:
    """The contract's arguments as the operator takes them."""
    flat: list[Any] = []
    for (_, parameter), argument in zip(_parameters(operation), arguments, strict=True):
        if parameter == Entries | None:
            flat += _flat(argument.fields()) if argument else [None] * _ENTRIES.count("?")
        else:
            flat += _flat([argument])
    return tuple(flat)


def _flat(arguments: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for argument in arguments:
        if isinstance(argument, PageStore):
            layout = argument.layout
            flat += [argument.pages, _format_name(layout.format), layout.entries]
        elif isinstance(argument, tuple):
            flat += map(list, zip(*(_flat(part.fields()) for part in argument), strict=True))
        elif isinstance(argument, Compressor):
            flat += [argument.ape, argument.norm_weight, argument.rope]
            flat += [argument.ratio, argument.overlap, argument.norm_eps, argument.hadamard]
            flat += [argument.round_norm, argument.round_rope]
        else:
            flat.append(argument)
    return flat


def _implementation(operation: str, backend: str) -> Callable[..., None]:
    parameters = [parameter for _, parameter in _parameters(operation)]

    def call(*flat: Any) -> None:
        rest = iter(flat)
        run = getattr(load_backend(backend), operation)
        run(*(_take(parameter, rest) for parameter in parameters))

    return call


def _take(parameter: Any, rest: Iterator[Any]) -> Any:
    if parameter is PageStore:
        return _store(next(rest), next(rest), next(rest))
    if parameter is Compressor:
        return _compressor(*(next(rest) for _ in range(9)))
    if parameter == Parts:
        words = zip(*(next(rest) for _ in range(_PARTS.count("[]"))), strict=True)
        types = [each.type for each in fields(PartWrite)]
        return tuple(
            PartWrite(*(_take(each, part) for each in types)) for part in map(iter, words)
        )
    if parameter == Entries | None:
        pages, name, size, *tensors = (next(rest) for _ in range(_ENTRIES.count("?")))
        return None if pages is None else Entries(_store(pages, name, size), *tensors)
    return next(rest)


def _store(pages: torch.Tensor, format_name: str, entries: int) -> PageStore:
    return PageStore(_layout(format_name, entries), pages)


def _format_name(entry: EntryFormat) -> str:
    return next(name for name, known in FORMAT_NAMES.items() if known == entry)


@functools.cache
def _layout(format_name: str, entries: int) -> PageLayout:
    if format_name not in FORMAT_NAMES:
        raise ConfigError(f"no format {format_name!r}: choose {', '.join(FORMAT_NAMES)}.")
    return PageLayout(FORMAT_NAMES[format_name], entries)


def _compressor(
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    rope: torch.Tensor,
    ratio: int,
    overlap: bool,
    norm_eps: float,
    *flags: bool,
) -> Compressor:
    dim = norm_weight.shape[0]
    return Compressor(ratio, dim, overlap, ape, norm_weight, norm_eps, rope, *flags)


def _parameters(operation: str) -> list[tuple[str, Any]]:
    found = inspect.signature(getattr(Backend, operation)).parameters
    return [(name, parameter.annotation) for name, parameter in found.items()][1:]  # no self


def _no_data(*_: Any) -> None:
    """Tensors without data: what an operator writes has the shape it had."""


def _register() -> object:
    untyped: Any = torch.library.Library
    library = untyped("dsv4kv", "DEF")
    for operation in OPERATIONS:
        library.define(schema(operation))
        library.impl(operation, _implementation(operation, "cpu"), "CPU")
        library.impl(operation, _implementation(operation, "cuda"), "CUDA")
        library.impl(operation, _no_data, "Meta")
    return library


_LIBRARY = _register()  # the operators live as long as this does
