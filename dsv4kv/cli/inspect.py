"""``dsv4kv inspect``: what pages of a cache hold, and what is wrong with them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.view.console import print_document

if TYPE_CHECKING:
    from dsv4kv.dumps.difference import Comparison
    from dsv4kv.dumps.inspection import Inspection

EPILOG = """\
[bold]Examples[/bold]

dsv4kv inspect pages.npy                                  which record, which faults

dsv4kv inspect cold.npy hit.npy --ratio 4                 where two dumps part, and how

dsv4kv inspect kv.safetensors --tensor layer2 --table table.npy --ratio 4
"""


def inspect(
    dump: Annotated[
        Path,
        typer.Argument(
            help=".npy, .safetensors, torch.save, or a tier's file of bytes.", show_default=False
        ),
    ],
    dump2: Annotated[
        Path | None,
        typer.Argument(help="The same content again: after a hit, or of the decode side."),
    ] = None,
    tensor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which one of a file's tensors.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="The record, where bytes do not show it."),
    ] = None,
    entries: Annotated[
        int | None, typer.Option(min=1, help="Entries of a page, where it is not found out.")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The request's pages in logical order (.npy, .json)."),
    ] = None,
    table2: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Those of the second dump.")
    ] = None,
    ratio: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1 << 20,
            help="Tokens of an entry: 4, 128; 0 for a window. Rows are in order then.",
        ),
    ] = None,
    first: Annotated[
        int, typer.Option(min=0, max=1 << 40, help="Which entry the first row is.")
    ] = 0,
    held: Annotated[
        int | None, typer.Option(min=1, help="Entries that the request should have.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Whose RoPE it is.",
        ),
    ] = "v4-flash",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the record format and the faults of pages that were dumped from an engine.

    With two dumps: the first difference by position, and of what kind it is.
    """
    from dsv4kv.dumps.inspection import Asked, Context, compare
    from dsv4kv.dumps.inspection import inspect as look
    from dsv4kv.errors import ConfigError
    from dsv4kv.model.presets import load_model
    from dsv4kv.view.inspect import report_comparison, report_inspection
    from dsv4kv.view.render import show

    if table2 and not dump2:
        raise ConfigError("--table2 is of a second dump: name that, too, or give --table.")
    context = Context(load_model(model), ratio, first, held)
    found = [look(dump, Asked(tensor, format_, entries, table), context)]
    comparison = None
    if dump2 is not None:
        found.append(look(dump2, Asked(tensor, format_, None, table2), context))
        comparison = compare(found[0], found[1], context)
    if as_json:
        print_document(_as_json(found, comparison))
    else:
        for each in found:
            show(report_inspection(each))
        if comparison:
            show(report_comparison(comparison))
    unknown = any(each.record is None for each in found)
    kinds = {each.kind for each in comparison.differences} if comparison else set()
    differs = bool(kinds - {"one step"})
    if unknown or differs or any(each.faults for each in found):
        raise typer.Exit(1)


def _as_json(found: "list[Inspection]", comparison: "Comparison | None") -> str:
    import json
    from dataclasses import asdict

    document: dict[str, Any] = {
        "dumps": [
            {
                "file": str(each.dump.path),
                "tensor": each.dump.name or None,
                "bytes": len(each.dump.data),
                "record": each.record and each.record.name,
                "arrangement": each.record and each.record.arrangement,
                "entry_bytes": each.record and each.record.layout.format.entry_bytes,
                "page_entries": each.record and each.record.layout.entries,
                "faults": [asdict(fault) for fault in each.faults],
            }
            for each in found
        ],
        "comparison": comparison and asdict(comparison),
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"
