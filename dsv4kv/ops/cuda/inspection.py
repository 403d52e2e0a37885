"""The kernels that the shipped models need, and what each became: registers, accesses, waits.

Kernels are launched by the scenes that check operations, so what is looked at is what a run
launches. Cubins are read as they are, their machine code with NVIDIA's ``nvdisasm``, which needs
no GPU. It takes half a second to start, so the kernels of one architecture go through it in one
piece. They are compared with a baseline: a file of registers, instructions and accesses. Another
compiler makes other code of the same source, so each version that is looked after has a file of
its own, ``nvrtc-13.5.json``.
"""

import functools
import importlib.util
import json
import os
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from dsv4kv.errors import ConfigError, CudaUnavailable, DeviceError
from dsv4kv.files import replacing, shipped, temporary_folder
from dsv4kv.model.config import build_schedule
from dsv4kv.model.plan import CachePlan, choose_formats, plan_cache, table_groups
from dsv4kv.model.presets import load_model
from dsv4kv.ops import cuda
from dsv4kv.ops.cuda.compile import check_architecture, load_cubins
from dsv4kv.ops.cuda.launch import foresee
from dsv4kv.ops.launches import LARGE, SMALL, KernelModule, Launch, pages, reads
from dsv4kv.ops.scenes import Arguments, Scene, make_call, scenes_of
from dsv4kv.ops.spec import OPERATIONS, VARIANTS, Variant
from dsv4kv.ops.storage import PageStore
from dsv4kv.processes import find_program, run_bounded, usable_cores

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120")
"""A100; H100 and H200; B200; B300; RTX 50."""

_META = torch.device("meta")
_WITH_227_KIB = ("sm_90a", "sm_100a", "sm_103a")  # of shared memory a block
_SHARED = {"large": LARGE, "small": SMALL}
_SHAPES = {"wide": reads.WIDE, "narrow": reads.NARROW}
_SHAPES |= {"groups": reads.GROUPS, "cluster": reads.PAIRS}
_BLOCK_TOKENS = 128  # larger pages change constants alone
_CONTEXT_TOKENS = 1 << 14  # fewer than a model's, for small tables of cosines


def _cache(model: str, *formats: str, **options: object) -> CachePlan:
    """One layer of each schema of a model."""
    config = load_model(model).model_copy(update={"max_context_tokens": _CONTEXT_TOKENS})
    kinds = {(layer.attn, layer.ratio, layer.owns_kv): layer for layer in build_schedule(config)}
    return plan_cache(
        config,
        max_context_tokens=_CONTEXT_TOKENS,
        num_slots=4,
        block_tokens=_BLOCK_TOKENS,
        layers=[layer.layer_idx for layer in kinds.values()],
        formats=choose_formats(config, *formats) if formats else None,
        **options,  # type: ignore[arg-type]
    )


def _caches() -> Iterator[tuple[str, CachePlan, tuple[str, ...], str]]:
    """Caches, operations that show their formats or states, and part of the scenes' subjects."""
    yield "V4", _cache("v4-flash"), tuple(OPERATIONS), ""
    states = ("state_append", "step_write", "flush", "compress_chunk")
    yield "V4 online", _cache("v4-flash", state="online"), states, ""
    # what Hopper has of keys, so it alone pools them; and angles in float64
    other = _cache("v4-flash", "fp8_ds_mla", "fp8_ds_mla", "fp8", rope="float64")
    yield "V4 FP8 keys", other, ("index_scores", "flush", "compress_chunk"), "indexer"
    yield "V4.1", _cache("v4.1-flash"), tuple(OPERATIONS), ""
    yield "V3.2", _cache("v3.2"), tuple(OPERATIONS), ""


@dataclass(frozen=True)
class Example:
    """A launch of one kernel and what it works on: ``fp8_ds_mla × 32``, ``csa-4 ring``."""

    subject: str  # its pages or states, the cache, and its variant where there are several
    launch: Launch  # what is launched
    architectures: tuple[str, ...] | None = None  # that it is for; None for all

    def runs_on(self, architecture: str) -> bool:
        """Whether an architecture has what the kernel takes."""
        return self.architectures is None or architecture in self.architectures


_CONSTANTS = re.compile(
    r"DSV_((MAIN|KEYS|WINDOW)_)?((PAGE_)?ENTRIES|PAGE_BYTES|SCALE_START|HEADS|SHARED_BYTES)"
)


def catalogue() -> list[Example]:
    """One example of each kernel of each module, in a fixed order.

    Of modules that differ in constants alone, sizes of pages and numbers of heads, the one with
    most. Interleaved formats are such modules, too: their scales have other offsets.
    """
    modules: dict[object, dict[KernelModule, dict[str, Example]]] = {}
    for example in (*_scene_examples(), *_other_examples()):
        module = example.launch.module
        macros = tuple(each for each in module.macros if not _CONSTANTS.fullmatch(each[0]))
        alike = modules.setdefault((module.source, macros), {})
        alike.setdefault(module, {}).setdefault(example.launch.kernel, example)
    chosen = (max(alike.values(), key=len) for alike in modules.values())
    return [example for kernels in chosen for example in kernels.values()]


def _scene_examples() -> Iterator[Example]:
    for name, plan, operations, subject in _caches():
        for scene in scenes_of(plan, 0):
            if scene.operation not in operations or subject not in scene.subject:
                continue
            arguments = make_call(scene.make, _META, 0).arguments
            for variant, architectures in _ways(scene, name).items():
                title = ", ".join(filter(None, (scene.subject, name, variant)))
                for launch in _launches(scene.operation, variant, arguments):
                    everywhere = launch.kernel == "merge_parts"
                    yield Example(title, launch, None if everywhere else architectures)


def _ways(scene: Scene, cache: str) -> dict[str, tuple[str, ...] | None]:
    """Variants that a scene shows, and the architectures that have them: of V4's entries all."""
    first = cache == "V4" and "indexer" not in scene.subject
    others = tuple(each for each in ARCHITECTURES if each not in _WITH_227_KIB)
    if scene.operation == "index_scores":
        return {"large": None, "small": others}  # small keys have large blocks everywhere
    if scene.operation == "attend":
        shapes: dict[str, tuple[str, ...] | None]
        # few heads take narrow blocks everywhere, but no model has so few
        hopper = ("sm_90a",)
        shapes = {"wide": _WITH_227_KIB, "groups": hopper, "cluster": hopper, "narrow": others}
        chosen = "csa" in scene.subject
        if not chosen:
            del shapes["narrow"]
        return shapes if chosen or first else {}
    ways = _compared(scene.operation)
    if cache == "V4 FP8 keys":
        return {next(iter(ways)): ("sm_90a",)}
    return ways if first else dict(list(ways.items())[:1])


def _compared(operation: str) -> dict[str, tuple[str, ...] | None]:
    """The variant in use everywhere; others where they are compared with it, or alone run."""
    ways = VARIANTS.get(operation, {"": Variant("")})
    found = {name: how.architectures or ("sm_90a",) for name, how in ways.items()}
    return {**found, next(iter(ways)): None}


def _launches(operation: str, variant: str, arguments: Arguments) -> list[Launch]:
    if operation == "attend":
        return list(reads.plan_attend(**arguments, shape=_SHAPES[variant], blocks=2))
    if operation == "index_scores":
        return [reads.plan_index_scores(**arguments, most_shared=_SHARED[variant])]
    with foresee() as launches:
        getattr(cuda, operation)(**arguments, **({"variant": variant} if variant else {}))
    return launches


def _empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


def _other_examples() -> Iterator[Example]:
    """What no operation is, or what it launches for more than a scene has."""
    config = load_model("v4-flash")
    int32, int64 = partial(_empty, torch.int32), partial(_empty, torch.int64)
    plan = _cache("v4-flash")
    main = next(each.main for each in plan.schemas if each.indexer)
    assert main
    store = PageStore.allocate(main, 2, _META)
    out = _empty(torch.bfloat16, 4, main.format.dims)
    for variant, architectures in _compared("gather_topk").items():
        launch = pages.plan_gather_entries(store, int32(4), out, variant=variant)
        title = f"pages of {main.entries} {main.format.name} entries, V4, {variant}"
        yield Example(title, launch, architectures)
    scores, lengths, chosen = _empty(torch.float32, 4, 16 * reads.RUN), int64(4), int32(4, 512)
    rows = int32(4, 8), int64(4), 64, chosen, chosen
    for blocks, size in ((None, ""), (int32(4, 2 * reads.RUN), " of blocks of 8")):
        for launch in reads.plan_select_topk(scores, lengths, blocks, *rows):
            yield Example(f"long rows{size}", launch)
    for launch in reads.plan_select_blocks(scores, lengths, 8, chosen):
        yield Example("long rows", launch)
    (group,) = table_groups(plan_cache(config, max_context_tokens=1, num_slots=1).schemas, "model")
    cells, sizes = int32(1, 4, group.blocks_for(131_072)), (group.ratio, group.entries_per_block)
    completed = pages.plan_completed(cells, *sizes, lengths, lengths, lengths[None])
    yield Example("block table", completed)
    memory, numbers = _empty(torch.uint8, 4096), int64(2, 2)
    for launch in (
        pages.plan_copy_peak(memory, memory),
        pages.plan_read_peak(memory, int32(pages.THREADS)),
        pages.plan_write_peak(memory),
        pages.plan_nothing(memory),
        pages.plan_objects("take", numbers, numbers, memory, 1024, 2048),
        pages.plan_objects("put", numbers, numbers, memory, 1024, 2048),
    ):
        yield Example("16-byte chunks", launch)


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
    texts = contents[names_at]
    names = [texts[header[0] : texts.index(b"\0", header[0])].decode() for header in headers]
    return dict(zip(names, contents, strict=True))


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
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_MEMORY = re.compile(r"(?:LD|ST|ATOM|RED|UBLKCP)(?!C)[A-Z]*$")  # all but constants (LDC, LDCU)
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
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
    # instructions that touch memory or leave the straight line before the one that waits for the
    # kernel in front; None if none waits
    early: int | None
    # instructions for the tensor cores by kind and shape, such as ``HMMA.16816``
    products: dict[str, int] = field(default_factory=dict)


def inspect_cubins(architecture: str, cubins: Sequence[bytes]) -> list[list[KernelReport]]:
    """Report the kernels of each cubin, all of one architecture.

    Raises ``CudaUnavailable`` where a tool is missing, ``DeviceError`` where it refuses a cubin.
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


def _reports(found: dict[str, bytes], instructions: Iterator[list[str]]) -> Iterator[KernelReport]:
    """Of each kernel of a cubin, whose instructions come in the order of its sections."""
    symbols, texts = found[".symtab"], found[".strtab"]
    usage: dict[tuple[str, int], int] = {}
    for kind, content in _facts(found[".nv.info"]):
        if kind in (_REGISTERS, _FRAME):
            symbol, number = struct.unpack("<II", content)
            (at,) = struct.unpack_from("<I", symbols, symbol * _SYMBOL_BYTES)
            usage[texts[at : texts.index(b"\0", at)].decode(), kind] = number
    for name in [each.removeprefix(_CODE) for each in found if each.startswith(_CODE)]:
        mnemonics = next(instructions)
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
            early=early,
            products=dict(sorted(products.items())),
        )


def _disassemble(architecture: str, codes: Sequence[bytes]) -> list[list[str]]:
    """Mnemonics of each piece of code, such as ``LDG.E.128``, without padding."""
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
    pieces: list[list[str]] = []
    start = 0
    for content in codes:
        end = start + len(content) // _INSTRUCTION_BYTES
        pieces.append([each for each in found[start:end] if each != "NOP"])
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


@dataclass(frozen=True)
class Finding:
    """What an example's kernel became for one architecture."""

    example: Example
    architecture: str
    report: KernelReport

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.example.launch.kernel

    @property
    def name(self) -> str:
        """Kernel and subject: ``gather_topk fp8_ds_mla × 32``, unique in the catalogue."""
        return f"{self.kernel} {self.example.subject}"


def survey(
    examples: Sequence[Example],
    architectures: Sequence[str],
    on_done: Callable[[int], None] = lambda _: None,
) -> list[Finding]:
    """Compile and inspect each example for the architectures that it supports, in order.

    Looks for the disassembler first, as compiling takes longest; ``on_done`` is called with how
    many more modules are compiled.

    Raises as ``load_cubins`` and ``inspect_cubins`` do.
    """
    find_disassembler()
    for architecture in architectures:
        check_architecture(architecture)
    modules = [modules_of(examples, each) for each in architectures]
    cubins = [load_cubins(*each, on_done) for each in zip(modules, architectures, strict=True)]
    with ThreadPoolExecutor(usable_cores()) as pool:
        inspected = list(pool.map(inspect_cubins, architectures, cubins))
    reports = {
        (architecture, module, report.kernel): report
        for architecture, *of_modules in zip(architectures, modules, inspected, strict=True)
        for module, found in zip(*of_modules, strict=True)
        for report in found
    }
    return [
        Finding(each, architecture, reports[architecture, each.launch.module, each.launch.kernel])
        for each in examples
        for architecture in filter(each.runs_on, architectures)
    ]


def modules_of(examples: Iterable[Example], architecture: str) -> list[KernelModule]:
    """What is compiled for an architecture."""
    wanted = (each.launch.module for each in examples if each.runs_on(architecture))
    return list(dict.fromkeys(wanted))


FIRST_DEPENDENT = 90
"""From sm_90 on a kernel may begin before the one in front of it has ended: each waits first."""


def broken_promises(findings: Iterable[Finding]) -> Iterator[str]:
    """A sentence for each kernel that uses local memory, or does not wait before it begins."""
    for finding in findings:
        where, report = f"{finding.name} on {finding.architecture}", finding.report
        spills = [kind for kind in report.accesses if kind.startswith(("LDL.", "STL."))]
        if report.local_bytes or spills:
            yield (
                f"{where} uses {report.local_bytes} B of local memory a thread (spilled registers "
                "or arrays indexed at run time)."
            )
        number = int(re.sub(r"\D", "", finding.architecture))
        if number >= FIRST_DEPENDENT and report.early != 0:
            behaviour = "never waits" if report.early is None else "touches memory before it waits"
            yield f"{where} {behaviour} for the kernel in front of it: begin with begin_kernel()."


Numbers = dict[str, int]
"""What is compared: ``registers``, ``instructions``, …, and accesses as ``LDG.128``."""

Baseline = dict[str, dict[str, Numbers]]
"""The numbers of every kernel and architecture."""


def baseline_path(nvrtc: str) -> Path:
    """The file of a version of NVRTC, in the source tree or the installed package."""
    return shipped("results/sass") / f"nvrtc-{nvrtc}.json"


def save_baseline(findings: Sequence[Finding], nvrtc: str) -> Path:
    """Write the findings as JSON, one line a kernel and architecture."""
    kernels: Baseline = {}
    for finding in findings:
        kernels.setdefault(finding.name, {})[finding.architecture] = _numbers(finding)
    document = {"nvrtc": nvrtc, "kernels": kernels}
    text = json.dumps(document, ensure_ascii=False, indent=2)
    flat = text.replace("\n        ", " ").replace("\n      }", " }")
    path = baseline_path(nvrtc)
    with replacing(path) as file:
        file.write(f"{flat}\n".encode())
    return path


def load_baseline(nvrtc: str) -> Baseline:
    """What ``save_baseline`` wrote; raises ``ConfigError`` for a version that has none."""
    path = baseline_path(nvrtc)
    if not path.is_file():
        raise ConfigError(
            f"no baseline of NVRTC {nvrtc} to compare with: {path} is not there "
            "(--write-baseline makes it)."
        )
    baseline: Baseline = json.loads(path.read_bytes())["kernels"]
    return baseline


def drift(findings: Sequence[Finding], baseline: Baseline) -> Iterator[str]:
    """A sentence for each kernel that is not as in the baseline."""
    for finding in findings:
        where = f"{finding.name} on {finding.architecture}"
        before = baseline.get(finding.name, {}).get(finding.architecture)
        if before is None:
            yield f"{where} is not in the baseline."
        elif before != (after := _numbers(finding)):
            changes = (
                f"{key} {before.get(key, 0)} → {after.get(key, 0)}"
                for key in before | after
                if before.get(key, 0) != after.get(key, 0)
            )
            yield f"{where} changed: {', '.join(changes)}."
    names = {finding.name for finding in findings}
    architectures = {finding.architecture for finding in findings}
    for name, numbers in baseline.items():
        if name not in names and not architectures.isdisjoint(numbers):
            yield f"{name} is in the baseline, but no longer in the catalogue."


def _numbers(finding: Finding) -> Numbers:
    report = finding.report
    names = ("registers", "instructions", "local_bytes", "shared_bytes")
    own = {name: getattr(report, name) for name in names}
    return own | report.accesses | report.products
