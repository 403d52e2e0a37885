"""What a kernel became: registers, local and shared memory, how it loads and stores.

Read from the machine code with NVIDIA's ``cuobjdump`` and ``nvdisasm``, which need no GPU. The
disassembler takes half a second to start, so the kernels of one architecture go through it in
one piece.
"""

import importlib.util
import os
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.files import temporary_folder
from dsv4kv.processes import find_program, run_bounded

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


_INSTRUCTION_BYTES = 16
_CODE = ".text."
_USAGE = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
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
_PARAMETER = re.compile(r"Ordinal : (0x\w+)\s+Offset\s+: 0x\w+\s+Size\s+: (0x\w+)")


@dataclass(frozen=True)
class KernelReport:
    """One kernel's machine code."""

    kernel: str  # its name
    registers: int  # of a thread
    # stack frame and local memory of a thread: spilled registers, arrays that did not fit into
    # registers
    local_bytes: int
    shared_bytes: int  # static shared memory of a block, what the system reserves included
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
    codes = [
        {
            name.removeprefix(_CODE): content
            for name, content in sections(cubin).items()
            if name.startswith(_CODE)
        }
        for cubin in cubins
    ]
    flat = [content for code in codes for content in code.values()]
    instructions = iter(_disassemble(architecture, flat))
    with temporary_folder("dsv4kv-cubin-") as folder:
        path = folder / "cubin"
        reports = []
        for cubin, code in zip(cubins, codes, strict=True):
            path.write_bytes(cubin)
            reports.append(_report(path, {name: next(instructions) for name in code}))
    return reports


def find_tool(name: str) -> Path:
    """``cuobjdump`` or ``nvdisasm``: from NVIDIA's wheels, else from PATH."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(place).glob(f"*/bin/{name}"), reverse=True):
            return found
    if on_path := find_program(name):
        return Path(on_path)
    raise CudaUnavailable(
        f"{name} is not here: pip install 'dsv4kv[cuda]', which brings nvidia-cuda-{name} (or put "
        "a CUDA toolkit's bin folder on PATH)."
    )


def check_tools() -> None:
    """Raise ``CudaUnavailable`` where something is missing that inspecting takes; says what."""
    for name in ("cuobjdump", "nvdisasm"):
        find_tool(name)


def _report(path: Path, code: dict[str, list[Instruction]]) -> list[KernelReport]:
    text = _run("cuobjdump", "-res-usage", "-elf", str(path))
    reports = []
    for name, *numbers in sorted(_USAGE.findall(text)):
        registers, stack, shared, local = map(int, numbers)
        mnemonics = [mnemonic for mnemonic, _ in code[name]]
        accesses = Counter(filter(None, map(_access, mnemonics)))
        products = Counter(match[0] for match in map(_PRODUCT.match, mnemonics) if match)
        early = None
        if _WAIT in mnemonics:
            before = mnemonics[: mnemonics.index(_WAIT)]
            early = sum(_access(each) is not None or bool(_JUMP.match(each)) for each in before)
        report = KernelReport(
            kernel=name,
            registers=registers,
            local_bytes=stack + local,
            shared_bytes=shared,
            instructions=len(mnemonics),
            parameter_bytes=_parameter_bytes(text, name),
            accesses=dict(sorted(accesses.items())),
            under_way=_loads_under_way(code[name]),
            early=early,
            products=dict(sorted(products.items())),
        )
        reports.append(report)
    return reports


def _disassemble(architecture: str, codes: Sequence[bytes]) -> list[list[Instruction]]:
    """Instructions of each piece of code, without padding."""
    with temporary_folder("dsv4kv-code-") as folder:
        (folder / "code").write_bytes(b"".join(codes))
        binary = architecture.replace("sm_", "SM")
        text = _run("nvdisasm", "--binary", binary, str(folder / "code"))
    found = _INSTRUCTION.findall(text)
    pieces, start = [], 0
    for code in codes:
        end = start + len(code) // _INSTRUCTION_BYTES
        pieces.append([each for each in found[start:end] if each[0] != "NOP"])
        start = end
    if start != len(found):
        raise DeviceError(
            f"nvdisasm shows {len(found)} instructions of {architecture}, the code has {start}: "
            "it does not know these cubins; install one as new as NVRTC."
        )
    return pieces


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
        named = [int(number) for number in _REGISTER.findall(operands)]
        kind, _, bits = (_access(mnemonic) or "").partition(".")
        loads = kind == "LDG" and int(bits) >= _WIDE_BITS
        if awaited.intersection(named[1:] if loads else named):
            issued, awaited = 0, set()
        if loads:
            issued += 1
            most = max(most, issued)
            awaited.update(range(named[0], named[0] + int(bits) // 32))
    return most


def _parameter_bytes(elf_text: str, kernel: str) -> tuple[int, ...]:
    section = re.search(rf"^\.nv\.info\.{kernel}$(.*?)(?=^\.(?!nv\.info\.{kernel}))", elf_text,
                        re.MULTILINE | re.DOTALL)  # fmt: skip
    found = _PARAMETER.findall(section[1]) if section else []
    return tuple(size for _, size in sorted((int(i, 16), int(n, 16)) for i, n in found))


def _run(tool: str, *arguments: str) -> str:
    program = find_tool(tool)
    folder = f"{find_tool('nvdisasm').parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        code, printed = run_bounded(
            [str(program), *arguments],
            {**os.environ, "PATH": folder},
            600.0,
            stderr=subprocess.STDOUT,
            most_bytes=2**30,
        )
    except subprocess.TimeoutExpired:
        code, printed = -1, "it printed without end"
    if code:
        words = printed.strip()[-500:]
        raise DeviceError(f"{tool} failed ({words}): install one as new as NVRTC.")
    return printed
