"""``dsv4kv inspect``: what pages of a cache hold, and what is wrong with them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError

if TYPE_CHECKING:
    from dsv4kv.diagnose.dumps import Inspection

EPILOG = examples(
    "dsv4kv inspect pages.npy                                  which record, which faults",
    "dsv4kv inspect cold.npy hit.npy --ratio 4                 where two dumps part, and how",
    "dsv4kv inspect kv.safetensors --tensor layer2 --table table.npy --ratio 4",
)
_SECOND = "The same content again: after a hit, or of the decode side."
_FORMAT = "The record format, where bytes do not show it."
_TABLE = "The request's pages in logical order (.npy)."
_RATIO = "Tokens of an entry: 4, 128; 0 for a window. Rows are in order then."


def inspect(
    dump: Path = opt.required(".npy, .safetensors, or a tier's file of bytes."),
    dump2: Path | None = opt.argument(_SECOND, show_default=True),
    tensor: opt.Text = opt.option("Tensor of a file with several.", "NAME", rare=True),
    format_: opt.Text = opt.option(_FORMAT, "NAME", "--format", rare=True),
    entries: int | None = opt.option("Entries of a page.", rare=True, min=1),
    table: Path | None = opt.option(_TABLE, "FILE"),
    table2: Path | None = opt.option("Block table of the second dump.", "FILE", rare=True),
    ratio: int | None = opt.option(_RATIO, min=0, max=1 << 20),
    model: str = opt.option(opt.MODELS, "NAME|FILE", rare=True, default="v4-flash"),
    as_json: bool = opt.AS_JSON,
) -> None:
    """Find the entry format of dumped cache pages, and corrupt entries.

    With two dumps: the first difference by position, and its kind.
    """
    from dsv4kv.diagnose.dumps import Request, compare
    from dsv4kv.diagnose.dumps import inspect as look
    from dsv4kv.model.presets import load_model
    from dsv4kv.view.console import open_console
    from dsv4kv.view.inspect import report_comparison, report_inspection

    if table2 and not dump2:
        raise ConfigError("--table2 is of a second dump: name that, too, or give --table.")
    context = Request(load_model(model), ratio)
    asked: dict[str, Any] = {"tensor": tensor, "format_name": format_}
    comparison = None
    with open_console(stderr=True).status("reading pages"):
        found = [look(dump, context, **asked, entries=entries, table_file=table)]
        if dump2 is not None:
            found.append(look(dump2, context, **asked, table_file=table2))
            comparison = compare(found[0], found[1], context)
    document = {
        "dumps": [_to_values(each) for each in found],
        "comparison": comparison and asdict(comparison),
    }
    parts = [part for each in found for part in report_inspection(each)]
    parts += report_comparison(comparison) if comparison else []
    opt.tell(parts, document, as_json=as_json)
    unknown = any(each.record is None for each in found)
    kinds = {each.kind for each in comparison.differences} if comparison else set()
    if unknown or kinds - {"one step"} or any(each.faults for each in found):
        raise typer.Exit(1)


def _to_values(found: "Inspection") -> dict[str, Any]:
    record = found.record
    return {
        "file": str(found.dump.path),
        "tensor": found.dump.name or None,
        "bytes": len(found.dump.data),
        "record": record and record.name,
        "arrangement": record and record.arrangement,
        "entry_bytes": record and record.layout.format.entry_bytes,
        "page_entries": record and record.layout.entries,
        "faults": [asdict(fault) for fault in found.faults],
    }
