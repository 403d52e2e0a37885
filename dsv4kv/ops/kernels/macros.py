"""A page layout as compile-time parameters of the CUDA sources."""

from dsv4kv.model.formats import PageLayout

# Numbers that kernels/format.cuh gives a meaning.
_VALUES = {"bf16": 0, "e4m3": 1, "e2m1": 2}
_SCALES = {"none": 0, "ue8m0": 1, "e4m3": 2, "fp32": 3}


def format_macros(layout: PageLayout) -> tuple[tuple[str, int], ...]:
    """Everything ``format.cuh`` needs to know of a layout: (name, value), sorted by name."""
    entry = layout.format
    macros = {
        "DSV_DIMS": entry.dims,
        "DSV_VALUE": _VALUES[entry.value],
        "DSV_VALUE_DIMS": entry.value_dims,
        "DSV_GROUP": entry.group,
        "DSV_SCALE": _SCALES[entry.scale],
        "DSV_SCALE_PADDING": entry.scale_padding,
        "DSV_ENTRIES": layout.entries,
        "DSV_PAGE_BYTES": layout.page_bytes,
        "DSV_DATA_ROW": entry.data_row_bytes,
        "DSV_SCALE_ROW": entry.scale_row_bytes,
    }
    return tuple(sorted(macros.items()))
