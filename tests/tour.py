"""The tour of a new user: every command of the README, the guides and the helps, as it is told.

``make tour`` builds a wheel, installs it with constraints.txt into an environment of its own and
runs every command in an empty folder, in four places: a terminal of 80 columns, one with NO_COLOR,
a pipe, and a pipe that is not UTF-8. Nothing may end in a traceback or with another exit code than
told below, be wider than the terminal, colour a pipe or print what nobody can read. What was
printed is kept next to the folder, to be looked at. Commands for a GPU end with their sentence.
"""

import argparse
import gzip
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len

from dsv4kv.runs.store import dumps
from tests.bench.compare.launched import make_launched_record
from tests.profile.exports import two_replays
from tests.profile.traces import cpu_events, save
from tests.test_documented_commands import HELPS, PAGES, ROOT, SHOWN

COLUMNS = 80
TIMEOUT_S = 1200
PATIENCE_S = 25
"""A command that takes longer runs in the terminal alone, unless --all is given."""

EXITS = {
    # verdicts, of records made up or measured now
    r"compare (--ab \S+ \S+\.yaml|--ab backend:cpu|results/)": {0, 1, 3},
    r"compare results/LRU.json": {0, 1, 2, 3},
    # the record of a page's answer
    r"compare before.json slower.json": {7},
    r"budget .*--gpus 8 .*--concurrency 3000": {1},
    r"budget .*--kv-offloading-size 100": {1},
    r"lint (serve.sh|.*log|runs)": {0, 1, 2},  # or files that are not there
    r"lint ": {0, 1},
    # dumps, a server, an engine and its results that are not there
    r"inspect [^-]": {4},
    r"probe [^-]": {5},
    r"conform [^-]": {8},
    r"replay calibrate (runs|c1)": {7},
    # the record of a run that README shows
    r"report results/2026": {7},
    r"watch server": {0, 2},
    r"replay server --against": {4},
    r"replay --resume RUN": {7},
    # a calibration that nobody has fitted, an extra that is not installed
    r"replay .*cost.calibration=": {0, 2},
    r"replay .*--ray": {0, 2},
    r"trace tokenize [^-]": {2},
    r"plan weka/": {4},
    # a trace that is too short for the question
    r"plan .*--gpus 16": {0, 2},
    # in a clone of the source tree only, which the folder may be in
    r"compare --ab (main|HEAD|origin/main) ": {0, 1, 2, 3},
    # of five models one does not fit; a folder that is there the second time
    r"budget .*--axis model=": {1},
    # a log that is not there, and what was recorded of no server
    r"record .*--requests": {2},
    r"trace convert (server|recording)": {4},
    # a GPU, its tools, packages for it and files that they write
    r"bench gpu": {6, 8},
    r"doctor --check-gpu": {0, 8},
    r"profile gpu": {0, 8, 9},
    r"bench --backend vllm": {0, 6, 8},
    r"bench --axis ops.variant": {0, 2, 8},
    r"profile (smoke --ncu|server.(nsys|ncu)-rep)": {9},
    r"profile server.sqlite --step": {0, 9},
}
"""Exit codes other than 0, by command."""

DOCUMENTS = r"--json|--csv|--print-command|config show"
"""What prints lines for programs, as wide as they are."""


@dataclass(frozen=True)
class Place:
    """Somewhere that output goes."""

    name: str
    terminal: bool
    env: Mapping[str, str]


PLACES = [
    Place("terminal", True, {"TERM": "xterm-256color"}),
    Place("pipe", False, {}),
    Place("no-color", True, {"TERM": "xterm-256color", "NO_COLOR": "1"}),
    Place("ascii", False, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}),
]
_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\].*?(\x07|\x1b\\)|[()][A-Z0-9])")
_COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:[349][0-8]|10[0-7])(?:;[\d;]*)?m")


def commands() -> list[str]:
    """Every command once, as a shell takes it: comments are for readers, pipes lead elsewhere."""
    shown = (re.sub(r"\$\{\{.*?\}\}", "main", command) for _, command in SHOWN)
    plain = (re.sub(r"\s+#.*|\s+\|.*", "", command) for command in shown)
    endless = "^dsv4kv (record|watch) .*"
    plain = (re.sub(endless, r"\g<0> --seconds 1", command) for command in plain)
    return list(dict.fromkeys([*(f"{name} --help" for name in HELPS), *plain]))


def install(folder: Path) -> Path:
    """An environment with the wheel of this tree; returns the folder of its programs."""
    environment, wheels = folder / "environment", folder / "wheels"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [str(environment / "bin" / "pip"), "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT], check=True)
    (wheel,) = wheels.glob("*.whl")
    asked = f"{wheel}[cuda,record]"
    subprocess.run([*pip, "install", "-c", ROOT / "constraints.txt", asked], check=True)
    return environment / "bin"


def prepare(folder: Path, run: "Runner") -> None:
    """What commands speak of and a user would have: files of guides, traces, records, profiles."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for name, block in re.findall(r"^```\w+ (\S+\.\w+)\n(.*?)^```$", text, re.M | re.S):
            (folder / name).write_text(block, "utf-8")
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
            if "def gather_topk" in block:
                make_packages(folder, block)
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "server.compose.yaml", folder / "docs")
    for name in ("BEFORE", "AFTER", "RUN", "NEW", "A", "B"):
        record = make_launched_record(seed=ord(name[0]))
        (folder / "results").mkdir(exist_ok=True)
        (folder / "results" / f"{name}.json").write_text(dumps(record), "utf-8")
    two_replays().save(folder / "server.sqlite")
    save(folder / "server.json", cpu_events())
    content = (folder / "server.json").read_bytes()
    (folder / "server.json.gz").write_bytes(gzip.compress(content))
    for name in ("before", "after"):
        shutil.copy(folder / "server.json", folder / f"{name}.json")
    run.quietly("trace synth conversation_trace.jsonl --shape chat --conversations 40")
    shutil.copy(folder / "conversation_trace.jsonl", folder / "trace.jsonl")
    content = (folder / "conversation_trace.jsonl").read_bytes()
    for name in ("big", "trace"):
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(content))
    for name in ("a", "b"):
        run.quietly(f"config show smoke > {name}.yaml")
    for name in ("LRU", "LFU"):
        run.quietly(f"replay builtin:chat -q --policy {name.lower()} --json results/{name}.json")


def make_packages(folder: Path, source: str) -> None:
    """A backend under the names that guides give it."""
    (folder / "my_gather.py").write_text(source, "utf-8")
    (folder / "mine.py").write_text(f"{source}\n\ngather = gather_topk\n", "utf-8")


@dataclass
class Runner:
    """Runs commands in a folder, with the programs of an environment."""

    folder: Path
    programs: Path

    def quietly(self, command: str) -> None:
        code, printed, _ = self.run(f"dsv4kv {command}", PLACES[1])
        if code:
            sys.exit(f"dsv4kv {command}: exit code {code}\n{printed.decode(errors='replace')}")

    def run(self, command: str, place: Place) -> tuple[int, bytes, float]:
        """Exit code, everything that was printed, seconds."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        home = str(self.folder / "home")
        base = {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        kept = {k: v for k, v in os.environ.items() if k in ("TMPDIR", "LD_LIBRARY_PATH")}
        ours, theirs = pty.openpty() if place.terminal else os.pipe()
        if place.terminal:
            set_size(theirs)
        begun = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**kept, **base, **place.env},
            stdin=theirs if place.terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        printed = b"".join(read_all(ours, process, begun + TIMEOUT_S))
        os.close(ours)
        return process.wait(), printed, time.monotonic() - begun


def set_size(terminal: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))


def read_all(source: int, process: "subprocess.Popen[bytes]", deadline: float) -> Iterator[bytes]:
    while True:
        if time.monotonic() > deadline:
            process.kill()
            yield b"\nTIMEOUT\n"
            return
        if select.select([source], [], [], 1.0)[0]:
            try:
                chunk = os.read(source, 1 << 16)
            except OSError:  # a terminal whose program has ended
                return
            if not chunk:
                return
            yield chunk


def faults(command: str, place: Place, code: int, printed: bytes) -> Iterator[str]:
    """What is wrong with an output, a sentence each."""
    allowed = next(
        (codes for pattern, codes in EXITS.items() if re.match(f"dsv4kv {pattern}", command)), {0}
    )
    if code not in allowed:
        yield f"exit code {code}, not {' or '.join(map(str, sorted(allowed)))}"
    is_document = re.search(DOCUMENTS, command) and "--help" not in command
    try:
        text = printed.decode("ascii" if place.name == "ascii" and not is_document else "utf-8")
    except UnicodeDecodeError as error:
        yield f"not to be read: {error}"
        text = printed.decode("utf-8", "replace")
    for sign in ("Traceback", "this should not have happened", "\ufffd", "TIMEOUT", "Warning:"):
        if sign in text:
            yield f"{sign!r} is printed"
    if not place.terminal and "\x1b" in text:
        yield "escape codes in a pipe"
    if place.name == "no-color" and _COLOUR.search(text):
        yield "colours, and NO_COLOR is set"
    if place.terminal and not is_document:
        lines = (_ESCAPE.sub("", line) for line in re.split(r"[\r\n]+", text))
        # whole, so that they can be pasted
        kept = ("dsv4kv ", "vllm ", "python ", "trtllm-serve ", "for i in ", "repeat ", "$ ")
        widest = max(
            (line for line in lines if not line.startswith(kept)), key=cell_len, default=""
        )
        if cell_len(widest) > COLUMNS:
            yield f"{cell_len(widest)} columns: {widest[:60]}…"


def main() -> int:
    """Run the tour; the number of outputs that are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "tour")
    parser.add_argument("--programs", type=Path, help="bin/ of an environment that has dsv4kv")
    parser.add_argument("--only", default="", help="commands that this expression is found in")
    parser.add_argument("--all", action="store_true", help="slow ones in every place, too")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    work, kept = given.folder / "work", given.folder / "printed"
    for folder in (work / "home", kept):
        folder.mkdir(parents=True)
    runner = Runner(work.resolve(), (given.programs or install(given.folder)).resolve())
    prepare(work, runner)
    wrong = 0
    for number, command in enumerate(commands()):
        if not re.search(given.only, command):
            continue
        for place in PLACES:
            code, printed, taken_s = runner.run(command, place)
            (kept / f"{number:03}-{place.name}.txt").write_bytes(
                f"$ {command}\n".encode()
                + printed
                + f"\n[exit {code}, {taken_s:.1f} s]\n".encode()
            )
            for fault in faults(command, place, code, printed):
                wrong += 1
                print(f"{number:03} {place.name}: {command}: {fault}", flush=True)
            if taken_s > PATIENCE_S and not given.all:
                break
    print(f"{wrong} faults; what was printed is in {kept}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
