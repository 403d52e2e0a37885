"""Entry formats and page layouts: how many bytes, and where each of them lies.

An entry is one cached vector. A format is a row of data, not a class: a new one is a new row in
``FORMATS``. A page holds P entries: P data rows, then P scale rows, then padding. For
``fp8_ds_mla`` these pages are identical, byte for byte, in FlashMLA, vLLM, SGLang and FlashInfer.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from dsv4kv.errors import ConfigError

Value = Literal["bf16", "e4m3", "e2m1"]
Scale = Literal["none", "ue8m0", "e4m3", "fp32"]
Place = Literal["main", "window", "indexer"]

_VALUE_BITS: dict[Value, int] = {"bf16": 16, "e4m3": 8, "e2m1": 4}
_SCALE_BYTES: dict[Scale, int] = {"none": 0, "ue8m0": 1, "e4m3": 1, "fp32": 4}


@dataclass(frozen=True)
class EntryFormat:
    """How one entry is stored.

    Attributes:
        name: Name used in configurations.
        value: Type of the leading channels: ``bf16`` as they are, ``e4m3`` or ``e2m1`` quantised.
        value_dims: Number of leading channels stored as ``value``.
        tail_dims: Number of trailing channels stored as bf16 (the RoPE part).
        group: Channels that share one scale; 0 without scales.
        scale: Type of a scale: power of two (``ue8m0``, ``fp32``) or ``e4m3``.
        scale_padding: Zero bytes after an entry's scales.
        page_align: A page is rounded up to a multiple of this, in bytes.
        inline_scales: Scales follow the values inside the data row instead of the page's end.
    """

    name: str
    value: Value
    value_dims: int
    tail_dims: int = 0
    group: int = 0
    scale: Scale = "none"
    scale_padding: int = 0
    page_align: int = 1
    inline_scales: bool = False

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
    def data_row_bytes(self) -> int:
        """Bytes of one entry's row in the data part of a page."""
        inline = self.scale_bytes if self.inline_scales else 0
        return self.value_bytes + inline + 2 * self.tail_dims

    @cached_property
    def scale_row_bytes(self) -> int:
        """Bytes of one entry's row in the scale part of a page."""
        return 0 if self.inline_scales else self.scale_bytes

    @cached_property
    def entry_bytes(self) -> int:
        """Bytes of one entry, page padding left out."""
        return self.data_row_bytes + self.scale_row_bytes


@dataclass(frozen=True)
class PageLayout:
    """A page of ``entries`` entries: data rows first, then scale rows, then padding."""

    format: EntryFormat
    entries: int

    @cached_property
    def scale_start(self) -> int:
        """Offset of the first scale row, in bytes."""
        return self.entries * self.format.data_row_bytes

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
        """Offset of an entry's scale row, in bytes."""
        return self.scale_start + entry * self.format.scale_row_bytes


_BF16_KV = EntryFormat("bf16", "bf16", 512)
_FP8_KV = EntryFormat("fp8", "e4m3", 512)
_FP8_DS_MLA = EntryFormat(
    "fp8_ds_mla",
    "e4m3",
    448,
    tail_dims=64,
    group=64,
    scale="ue8m0",
    scale_padding=1,
    page_align=576,
)

FORMATS: dict[Place, dict[str, EntryFormat]] = {
    "main": {
        "fp8_ds_mla": _FP8_DS_MLA,
        "bf16": _BF16_KV,
        "fp8": _FP8_KV,
        # DeepSeek-V4.1: all 512 channels in 4 bits, one e4m3 scale per 16. Its page rule is not
        # published: data rows, then scale rows, rounded to a whole data row, is ours.
        "fp4": EntryFormat("fp4", "e2m1", 512, group=16, scale="e4m3", page_align=256),
    },
    "window": {
        "fp8_ds_mla": _FP8_DS_MLA,
        "bf16": _BF16_KV,
        "fp8": _FP8_KV,
        # DeepSeek-V4.1: all 512 channels in 8 bits, one power-of-two scale per 32; page as above.
        "fp8_group32": EntryFormat(
            "fp8_group32", "e4m3", 512, group=32, scale="ue8m0", page_align=512
        ),
    },
    "indexer": {
        "mxfp4": EntryFormat("mxfp4", "e2m1", 128, group=32, scale="ue8m0"),
        "fp8": EntryFormat("fp8", "e4m3", 128, group=128, scale="fp32"),
        "bf16": EntryFormat("bf16", "bf16", 128),
    },
}

FLAT_FORMATS: dict[str, EntryFormat] = {
    # DeepSeek-V3.2 (vLLM's fp8_ds_mla for it): 512 e4m3, four fp32 scales, 64 bf16, in one row.
    "fp8_ds_mla": EntryFormat(
        "fp8_ds_mla", "e4m3", 512, tail_dims=64, group=128, scale="fp32", inline_scales=True
    ),
    "bf16": EntryFormat("bf16", "bf16", 576),
}


def entry_format(place: Place, name: str) -> EntryFormat:
    """Look up a V4 format by place and name; raises ``ConfigError`` naming the choices."""
    return _find(FORMATS[place], name, f"a {place} format")


def flat_entry_format(name: str) -> EntryFormat:
    """Look up a format of V3.2's uncompressed 576-channel entries."""
    return _find(FLAT_FORMATS, name, "a V3.2 main format")


def _find(table: dict[str, EntryFormat], name: str, what: str) -> EntryFormat:
    if name not in table:
        raise ConfigError(f"{name!r} is not {what}: choose {', '.join(table)}.")
    return table[name]


def marginal_bytes(entry: EntryFormat | None, ratio: int) -> Fraction:
    """Exact bytes that one token of context adds where one entry covers ``ratio`` tokens."""
    return Fraction(entry.entry_bytes, ratio) if entry and ratio else Fraction(0)
