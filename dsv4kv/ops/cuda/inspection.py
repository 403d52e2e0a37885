"""What a kernel became: registers, local and shared memory, how it loads and stores.

Read from cubins, and their machine code with NVIDIA's ``nvdisasm``, which needs no GPU. It takes
half a second to start, so the kernels of one architecture go through it in one piece.
"""

import functools
import importlib.util
import os
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.files import temporary_folder
from dsv4kv.processes import find_program, run_bounded

_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_CONTENT = 8  # SHT_NOBITS
_SYMBOL_BYTES = 24

# Kinds of what .nv.info says, and how those look that have content of a size that they say.
_REGISTERS, _FRAME, _PARAMETER, _SIZED = 0x2F, 0x11, 0x17, 4


def sections(elf: bytes) -> dict[str, bytes]:
    """Every section of a 64-bit little-endian ELF file by name; zeros for one without content."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [_SECTION.unpack_from(elf, table + i * size) for i in range(count)]
    contents = [
        bytes(size) if kind == _NO_CONTENT else elf[at : at + size]
        for _, kind, _, _, at, size, *_ in headers
    ]
    names = [_text_at(contents[names_at], header[0]) for header in headers]
    return dict(zip(names, contents, strict=True))


def _text_at(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()


def _facts(section: bytes) -> Iterator[tuple[int, bytes]]:
    """What the compiler says in a section ``.nv.info``: kinds and contents."""
    at = 0
    while at < len(section):
        form, kind, size = struct.unpack_from("<BBH", section, at)
        size = size if form == _SIZED else 0
        yield kind, section[at + 4 : at + 4 + size]
        at += 4 + size


_INSTRUCTION_BYTES = 16
_CODE = ".text."
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*) *([^;]*)", re.MULTILINE
)
_MEMORY = re.compile(r"(?:LD|ST|ATOM|RED|UBLKCP)(?!C)[A-Z]*$")  # all but constants (LDC, LDCU)
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
_REGISTER = re.compile(r"\bR([0-9]+)\b")
_WIDE_BITS = 64  # values: a table's cells and int32 indices are narrower
_WAIT = "ACQBULK"  # griddepcontrol.wait
_PRODUCT = re.compile(r"[A-Z]+MMA\.[0-9]+")  # of matrices
_JUMP = re.compile(r"BRA|BRX|JMP|JMX|CALL|EXIT|RET")


@dataclass(frozen=True)
class KernelReport:
    """One kernel's machine code."""

    kernel: str  # its name
    registers: int  # of a thread
    # stack frame and local memory of a thread: spilled registers, arrays that did not fit into
    # registers
    local_bytes: int
    shared_bytes: int  # static shared memory of a block
    instructions: int  # without padding
    parameter_bytes: tuple[int, ...]  # size of each parameter
    # instructions by kind and bits of one thread's access, such as ``LDG.128``
    accesses: dict[str, int]
    # most global loads of 64 bits or more that are issued before the first of them is waited for
    under_way: int
    # instructions that touch memory or leave the straight line before the one that waits for the
    # kernel in front; None if none waits
    early: int | None
    # instructions for the tensor cores by kind and shape, such as ``HMMA.16816``
    products: dict[str, int] = field(default_factory=dict)


Instruction = tuple[str, str]
"""Mnemonic and operands: ``LDG.E.128``, ``R4, desc[UR4][R2.64]``."""


def inspect_cubins(architecture: str, cubins: Sequence[bytes]) -> list[list[KernelReport]]:
    """Report the kernels of each cubin, all of one architecture.

    Raises:
        CudaUnavailable: A tool is missing; says which and how to install it.
        DeviceError: A tool refuses a cubin.
    """
    found = [sections(cubin) for cubin in cubins]
    codes = [content for each in found for name, content in each.items() if name.startswith(_CODE)]
    instructions = iter(_disassemble(architecture, codes))
    return [list(_reports(each, instructions)) for each in found]


def find_disassembler() -> Path:
    """``nvdisasm``: from NVIDIA's wheel, else from PATH; raises ``CudaUnavailable``."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(place).glob("*/bin/nvdisasm"), reverse=True):
            return found
    if on_path := find_program("nvdisasm"):
        return Path(on_path)
    raise CudaUnavailable(
        "nvdisasm is not here: pip install 'dsv4kv[cuda]', which brings nvidia-cuda-nvdisasm (or "
        "put a CUDA toolkit's bin folder on PATH)."
    )


def _reports(
    found: dict[str, bytes], instructions: Iterator[list[Instruction]]
) -> Iterator[KernelReport]:
    """Of each kernel of a cubin, whose instructions come in the order of its sections."""
    symbols, texts = found[".symtab"], found[".strtab"]
    usage: dict[tuple[str, int], int] = {}
    for kind, content in _facts(found[".nv.info"]):
        if kind in (_REGISTERS, _FRAME):
            symbol, number = struct.unpack("<II", content)
            (name_at,) = struct.unpack_from("<I", symbols, symbol * _SYMBOL_BYTES)
            usage[_text_at(texts, name_at), kind] = number
    for name in [each.removeprefix(_CODE) for each in found if each.startswith(_CODE)]:
        code = next(instructions)
        mnemonics = [mnemonic for mnemonic, _ in code]
        accesses = Counter(filter(None, map(_access, mnemonics)))
        products = Counter(match[0] for match in map(_PRODUCT.match, mnemonics) if match)
        early = None
        if _WAIT in mnemonics:
            before = mnemonics[: mnemonics.index(_WAIT)]
            early = sum(_access(each) is not None or bool(_JUMP.match(each)) for each in before)
        facts = _facts(found[f".nv.info.{name}"])
        parameters = sorted(
            struct.unpack("<4xHHI", content) for kind, content in facts if kind == _PARAMETER
        )
        yield KernelReport(
            kernel=name,
            registers=usage[name, _REGISTERS],
            local_bytes=usage[name, _FRAME],
            shared_bytes=len(found.get(f".nv.shared.{name}", b"")),
            instructions=len(mnemonics),
            parameter_bytes=tuple(packed >> 18 for _, _, packed in parameters),
            accesses=dict(sorted(accesses.items())),
            under_way=_loads_under_way(code),
            early=early,
            products=dict(sorted(products.items())),
        )


def _disassemble(architecture: str, codes: Sequence[bytes]) -> list[list[Instruction]]:
    """Instructions of each piece of code, without padding."""
    with temporary_folder("dsv4kv-code-") as folder:
        (folder / "code").write_bytes(b"".join(codes))
        binary = architecture.replace("sm_", "SM")
        command = [str(find_disassembler()), "--binary", binary, str(folder / "code")]
        try:
            status, text = run_bounded(
                command, dict(os.environ), 600.0, stderr=subprocess.STDOUT, most_bytes=2**30
            )
        except subprocess.TimeoutExpired:
            status, text = -1, "it printed without end"
    if status:
        words = text.strip()[-500:]
        raise DeviceError(f"nvdisasm failed ({words}): install one as new as NVRTC.")
    found = _INSTRUCTION.findall(text)
    pieces: list[list[Instruction]] = []
    start = 0
    for content in codes:
        end = start + len(content) // _INSTRUCTION_BYTES
        pieces.append([each for each in found[start:end] if each[0] != "NOP"])
        start = end
    if start != len(found):
        raise DeviceError(
            f"nvdisasm shows {len(found)} instructions of {architecture}, the code has {start}: "
            "it does not know these cubins; install one as new as NVRTC."
        )
    return pieces


@functools.cache
def _access(mnemonic: str) -> str | None:
    """``LDG.E.NA.128.CONSTANT`` is ``LDG.128``; None for what touches no memory."""
    kind, *modifiers = mnemonic.split(".")
    if not _MEMORY.match(kind):
        return None
    bits = next((_BITS[part] for part in modifiers if part in _BITS), 32)
    return f"{kind}.{bits}"


def _loads_under_way(code: Sequence[Instruction]) -> int:
    """In the order of the code: branches are followed as if none were taken."""
    most = issued = 0
    awaited: set[int] = set()
    for mnemonic, operands in code:
        kind, _, bits = (_access(mnemonic) or "").partition(".")
        loads = kind == "LDG" and int(bits) >= _WIDE_BITS
        if not (loads or awaited):
            continue
        named = [int(number) for number in _REGISTER.findall(operands)]
        if awaited.intersection(named[1:] if loads else named):
            issued, awaited = 0, set()
        if loads:
            issued += 1
            most = max(most, issued)
            awaited.update(range(named[0], named[0] + int(bits) // 32))
    return most
