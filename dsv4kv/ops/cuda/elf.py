"""A cubin is an ELF file: its sections."""

import struct

_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_CONTENT = 8  # SHT_NOBITS


def sections(elf: bytes) -> dict[str, bytes]:
    """Content of every section of a 64-bit little-endian ELF file, by name."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [_SECTION.unpack_from(elf, table + i * size) for i in range(count)]
    names = _content(elf, headers[names_at])
    return {
        names[header[0] : names.index(b"\0", header[0])].decode(): _content(elf, header)
        for header in headers
    }


def _content(elf: bytes, header: tuple[int, ...]) -> bytes:
    kind, offset, size = header[1], header[4], header[5]
    return b"" if kind == _NO_CONTENT else elf[offset : offset + size]
