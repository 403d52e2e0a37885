"""Record the caches that llama-server prints for 20 random settings, and hits of 60 prompts.

    python llama_asked.py BUILD/bin/llama-server FOLDER_OF_MODELS > llama_0.3.36.jsonl

The folder has flash.gguf, flash_mtp.gguf, pro.gguf and small.gguf (5 layers) by
``llama_model.py``. Recorded: llama.cpp 0c1e57098 of the PyPI source package llama-cpp-python
0.3.36, built for a CPU.
"""

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib import request

PORT = "18733"
_SIZE = re.compile(r"(?:KV|state) buffer size = +([\d.]+) MiB")
_MODELS = ("flash", "flash", "flash_mtp", "pro")


def settings(seed: int = 39) -> Iterator[tuple[str, list[str]]]:
    """A model and the flags of a start, none of which takes many GiB."""
    draw = random.Random(seed)
    while True:
        model, slots = draw.choice(_MODELS), draw.choice([None, 1, 2, 3, 4, 7])
        kind = draw.choice(["f16", "f16", "q8_0", "q4_0", "bf16", "q5_1"])
        context = draw.randrange(1_000, 60_000)
        flags = ["-c", str(context), "-ctk", kind, "-ctv", kind]
        flags += ["-np", str(slots)] if slots else []
        flags += ["-kvu"] if slots and draw.random() < 0.2 else []
        if draw.random() < 0.5:
            flags += ["-ub", str(draw.choice([128, 256, 700, 1024, 2048]))]
        flags += ["-b", str(draw.choice([256, 1024, 4096]))] if draw.random() < 0.4 else []
        flags += ["--swa-full"] if draw.random() < 0.25 else []
        if model == "flash_mtp":
            flags += ["--spec-type", "draft-mtp"]
            drafts = draw.choice([1, 2, 5])
            flags += ["--spec-draft-n-max", str(drafts)] if draw.random() < 0.6 else []
        yield model, flags


def start(program: str, model: Path, flags: list[str]) -> dict[str, object]:
    """Sizes of buffers in MiB, in order, and what it says of its slots."""
    command = [program, "-m", str(model), *flags, "-lv", "4", "--no-warmup", "--port", PORT]
    sizes, slots = list[float](), ""
    into = subprocess.PIPE
    with subprocess.Popen(command, stdout=into, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout
        for line in run.stdout:
            sizes += map(float, _SIZE.findall(line))
            if "initializing, n_slots" in line:
                slots = line[line.index("n_slots") :].strip()
                break
        run.kill()
    return {"model": model.stem, "flags": flags, "buffers_mib": sizes, "slots": slots}


def prompts(seed: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Prompts as the number of an earlier one (-1 for none), tokens of it, and new tokens."""
    draw, sizes = random.Random(seed), list[int]()
    for number in range(count):
        of = draw.randrange(number) if number and draw.random() < 0.8 else -1
        size = sizes[of] if of >= 0 else 0
        near = size - draw.choice([0, 0, 0, 3, 5, 60, 200, 600])
        common = max(0, draw.choice([size, near, near, draw.randrange(size + 1)]))
        new = draw.randrange(1, 300) if of >= 0 else draw.randrange(200, 1_500)
        new *= draw.random() < 0.8 or not common
        sizes.append(common + new)
        yield of, common, new


def ask(program: str, model: Path, flags: list[str], seed: int, count: int) -> dict[str, object]:
    """Tokens that the server says it had cached, prompt by prompt, a token of answer each."""
    command = [program, "-m", str(model), *flags, "-t", "1", "--no-warmup", "--port", PORT]
    made, hits = list[list[int]](), list[int]()
    shapes = list(prompts(seed, count))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        draw = random.Random(seed)
        for of, common, new in shapes:
            own = [draw.randrange(2, 512) for _ in range(new)]
            made.append((made[of][:common] if of >= 0 else []) + own)
            body = {"prompt": made[-1], "n_predict": 1, "temperature": 0, "cache_prompt": True}
            hits.append(post(body)["timings"]["cache_n"])
        run.kill()
    return {"flags": flags, "prompts": shapes, "hits": hits}


def post(body: dict[str, object]) -> dict[str, dict[str, int]]:
    """The answer to a completion; waits for the server to start."""
    data = json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    for _ in range(150):
        try:
            asked = request.Request(f"http://127.0.0.1:{PORT}/completion", data, head)
            with request.urlopen(asked) as answer:
                found: dict[str, dict[str, int]] = json.load(answer)
                return found
        except OSError:  # it is not there yet, or loads its model
            time.sleep(0.2)
    raise SystemExit("the server does not answer")


ASKED = (
    (["-c", "8192", "-np", "1", "-ub", "128"], 1),
    (["-c", "16384", "-np", "2", "-ub", "256"], 2),
    (["-c", "8192", "-ub", "512"], 3),
    (["-c", "24576", "-np", "3", "-ub", "64", "--cache-ram", "0"], 4),
)

if __name__ == "__main__":
    program, folder = sys.argv[1], Path(sys.argv[2])
    chosen = settings()
    for _ in range(20):
        name, flags = next(chosen)
        print(json.dumps(start(program, folder / f"{name}.gguf", flags)), flush=True)
    for flags in (["-np", "2"], []):
        full = ["-c", "9000", *flags, "--swa-full", "--spec-type", "draft-mtp"]
        print(json.dumps(start(program, folder / "flash_mtp.gguf", full)), flush=True)
    for flags, seed in ASKED:
        print(json.dumps(ask(program, folder / "small.gguf", flags, seed, 15)), flush=True)
