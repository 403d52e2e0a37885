"""Entry formats and page layouts: how many bytes, and where each of them is.

An entry is one cached vector. A format is a row of data, not a class: a new one is a new row in
``FORMATS``, or in ``SIZED_FORMATS`` as long as no operation reads and writes it. A page of P
entries is arranged in one of two ways: *block-split*, P data rows, then P scale rows, or
*interleaved*, each entry's scales in its own row; then padding. For ``fp8_ds_mla`` these pages are
identical, byte for byte, in FlashMLA, vLLM, SGLang and FlashInfer.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from dsv4kv.errors import ConfigError

Value = Literal["bf16", "e4m3", "e2m1"]
Scale = Literal["none", "ue8m0", "ue8m0x4", "e4m3", "fp32", "amax_fp32"]
ScalePlace = Literal["page_end", "after_values", "row_end"]
Place = Literal["main", "window", "indexer"]

_VALUE_BITS: dict[Value, int] = {"bf16": 16, "e4m3": 8, "e2m1": 4}
_SCALE_BYTES: dict[Scale, int] = {"none": 0, "ue8m0": 1, "ue8m0x4": 4, "e4m3": 1}
_SCALE_BYTES |= {"fp32": 4, "amax_fp32": 4}


@dataclass(frozen=True)
class EntryFormat:
    """How one entry is stored."""

    name: str  # name used in configurations
    # type of the leading channels: ``bf16`` as they are, ``e4m3`` or ``e2m1`` quantised
    value: Value
    value_dims: int  # number of leading channels stored as ``value``
    tail_dims: int = 0  # number of trailing channels stored without scale (the RoPE part)
    group: int = 0  # channels that share one scale; 0 without scales
    # type of a scale: power of two (``ue8m0``, the same byte four times ``ue8m0x4``, ``fp32``),
    # ``e4m3``, or the largest value's share of 448 as it is (``amax_fp32``)
    scale: Scale = "none"
    scale_padding: int = 0  # zero bytes after an entry's scales
    page_align: int = 1  # a page is rounded up to a multiple of this, in bytes
    # where an entry's scales are: in the page's second part (block-split), or in its own row
    # (interleaved) between values and tail or after both
    scales_at: ScalePlace = "page_end"
    tail: Value = "bf16"  # type of the trailing channels
    # scales of one row are stored as a transposed matrix of so many columns: scale s is number
    # ``groups / columns · (s mod columns) + s // columns``; 1 in order
    scale_columns: int = 1

    @cached_property
    def dims(self) -> int:
        """Channels of one entry."""
        return self.value_dims + self.tail_dims

    @cached_property
    def groups(self) -> int:
        """Scales of one entry."""
        return self.value_dims // self.group if self.group else 0

    @cached_property
    def value_bytes(self) -> int:
        """Bytes of the leading channels."""
        return self.value_dims * _VALUE_BITS[self.value] // 8

    @cached_property
    def scale_bytes(self) -> int:
        """Bytes of one entry's scales, padding included."""
        return self.groups * _SCALE_BYTES[self.scale] + self.scale_padding

    @cached_property
    def tail_bytes(self) -> int:
        """Bytes of the trailing channels."""
        return self.tail_dims * _VALUE_BITS[self.tail] // 8

    @cached_property
    def inline_scales(self) -> bool:
        """Whether scales are in the entry's own row: pages are interleaved."""
        return self.scales_at != "page_end"

    @cached_property
    def tail_start(self) -> int:
        """Offset of the trailing channels in the data row, in bytes."""
        return self.value_bytes + (self.scale_bytes if self.scales_at == "after_values" else 0)

    @cached_property
    def data_row_bytes(self) -> int:
        """Bytes of one entry's row in the data part of a page."""
        inline = self.scale_bytes if self.inline_scales else 0
        return self.value_bytes + inline + self.tail_bytes

    @cached_property
    def scale_row_bytes(self) -> int:
        """Bytes of one entry's row in the scale part of a page."""
        return 0 if self.inline_scales else self.scale_bytes

    @cached_property
    def entry_bytes(self) -> int:
        """Bytes of one entry, without page padding."""
        return self.data_row_bytes + self.scale_row_bytes


@dataclass(frozen=True)
class PageLayout:
    """A page of ``entries`` entries: data rows, scale rows unless interleaved, then padding."""

    format: EntryFormat
    entries: int

    @cached_property
    def scale_start(self) -> int:
        """Offset of the first entry's scales, in bytes."""
        entry = self.format
        if not entry.inline_scales:
            return self.entries * entry.data_row_bytes
        return entry.value_bytes + (entry.tail_bytes if entry.scales_at == "row_end" else 0)

    @cached_property
    def scale_stride(self) -> int:
        """Bytes from one entry's scales to the next one's."""
        entry = self.format
        return entry.data_row_bytes if entry.inline_scales else entry.scale_row_bytes

    @cached_property
    def page_bytes(self) -> int:
        """Bytes of the page, padding included."""
        align = self.format.page_align
        return -(-self.entries * self.format.entry_bytes // align) * align

    @cached_property
    def padding_bytes(self) -> int:
        """Bytes of the page that hold nothing."""
        return self.page_bytes - self.entries * self.format.entry_bytes

    def data_offset(self, entry: int) -> int:
        """Offset of an entry's data row, in bytes."""
        return entry * self.format.data_row_bytes

    def scale_offset(self, entry: int) -> int:
        """Offset of an entry's scales, in bytes."""
        return self.scale_start + entry * self.scale_stride


_FP8_DS_MLA = EntryFormat("fp8_ds_mla", "e4m3", 448, tail_dims=64, group=64, scale="ue8m0",
                          scale_padding=1, page_align=576)  # fmt: skip
# DeepSeek-V4.1: all 512 channels in 8 bits, one power-of-two scale per 32, or in 4 bits, one e4m3
# scale per 16. SGLang 0.5.23 stores both block-split (kernels/ops/attention/dsv4/kv_layout.py).
_FP8_GROUP32 = EntryFormat("fp8_group32", "e4m3", 512, group=32, scale="ue8m0", page_align=512)
_FP4 = EntryFormat("fp4", "e2m1", 512, group=16, scale="e4m3", page_align=256)


def _interleaved(entry: EntryFormat) -> EntryFormat:
    """The same record, each one's scales after it: pages are whole records, nothing else."""
    name, page_align = f"{entry.name}_interleaved", entry.entry_bytes
    return replace(entry, name=name, scales_at="row_end", page_align=page_align)


def _named(*entries: EntryFormat) -> dict[str, EntryFormat]:
    return {entry.name: entry for entry in entries}


_PLAIN = (_FP8_DS_MLA, EntryFormat("bf16", "bf16", 512), EntryFormat("fp8", "e4m3", 512))
# interleaved: vLLM 0.33.0 (deepseek_v41/common/ops/cache_utils.py); SGLang 0.5.23 as V41_NEW
_IN_4, _IN_8 = (_FP4, _interleaved(_FP4)), (_FP8_GROUP32, _interleaved(_FP8_GROUP32))
FORMATS: dict[Place, dict[str, EntryFormat]] = {
    "main": _named(*_PLAIN, *_IN_4, *_IN_8),
    "window": _named(*_PLAIN, *_IN_8),
    "indexer": _named(
        EntryFormat("mxfp4", "e2m1", 128, group=32, scale="ue8m0"),
        EntryFormat("fp8", "e4m3", 128, group=128, scale="fp32"),
        EntryFormat("bf16", "bf16", 128),
    ),
}
"""What operations read and write."""

# FlashInfer (pull request 4955) and, with SGLANG_SM120_KV_CACHE_FORMAT=nvfp4, SGLang (38646) on
# SM120: 448 channels in 4 bits, one e4m3 scale per 16, RoPE in bf16; block-split, no padding.
_NVFP4 = EntryFormat("nvfp4", "e2m1", 448, tail_dims=64, group=16, scale="e4m3", scale_padding=4)

SIZED_FORMATS: dict[Place, dict[str, EntryFormat]] = {
    "main": _named(_NVFP4),
    "window": _named(_NVFP4),
    # vLLM 0.33.0 on SM100 (utils/deep_gemm.py, mqa_logits_use_mx_scales): the one power of two as
    # four equal bytes.
    "indexer": _named(EntryFormat("fp8_ue8m0x4", "e4m3", 128, group=128, scale="ue8m0x4")),
}
"""What engines store next to that, and no operation here reads or writes: ``budget`` sizes it."""

FLAT_FORMATS = _named(
    # DeepSeek-V3.2 (vLLM's fp8_ds_mla for it): 512 e4m3, four fp32 scales, 64 bf16, in one row.
    # The scales are no powers of two (vLLM's concat_and_cache_ds_mla, SGLang 0.5.23's
    # dsa_quant_k_cache.py).
    EntryFormat("fp8_ds_mla", "e4m3", 512, tail_dims=64, group=128, scale="amax_fp32",
                scales_at="after_values"),
    EntryFormat("bf16", "bf16", 576),
    # SGLang 0.5.23 for its backend trtllm (kv_cache_configurator.py): no scales.
    EntryFormat("fp8", "e4m3", 576),
)  # fmt: skip
"""What operations read and write of DeepSeek-V3.2."""

SIZED_FLAT_FORMATS = _named(
    # vLLM 0.33.0's nvfp4_ds_mla for it (flashmla_sparse.py): 512 e2m1, 64 e4m3 without scale, 32
    # e4m3 scales in the order that FlashMLA's threads read them.
    EntryFormat("nvfp4", "e2m1", 512, tail_dims=64, group=16, scale="e4m3", scales_at="row_end",
                tail="e4m3", scale_columns=4)
)  # fmt: skip


MOVED_FORMATS = (
    *(entry for formats in FORMATS.values() for entry in formats.values()),
    *FLAT_FORMATS.values(),
)
"""All that operations read and write."""


def known_formats(place: Place) -> dict[str, EntryFormat]:
    """Every format of a place: what operations read and write, then what is only sized."""
    return FORMATS[place] | SIZED_FORMATS[place]


def entry_format(place: Place, name: str, *, flat: bool = False) -> EntryFormat:
    """Look up a format by place and name; ``flat``: V3.2's uncompressed entries of 576 channels.

    Raises ``ConfigError``, naming the choices.
    """
    table = FLAT_FORMATS | SIZED_FLAT_FORMATS if flat else known_formats(place)
    if name not in table:
        what = "a V3.2 main format" if flat else f"a {place} format"
        raise ConfigError(f"{name!r} is not {what}: choose {', '.join(table)}.")
    return table[name]
