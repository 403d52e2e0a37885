"""Record the caches that llama-server prints for random settings, and hits of 90 prompts.

    python -m tests.engines.oracles.llama_asked BUILD/bin/llama-server MODELS > again.jsonl

Settings and prompts are those that were drawn for ``llama_0.3.36.jsonl``.

The folder MODELS has flash.gguf, flash_mtp.gguf, pro.gguf and small.gguf (5 layers) by
``llama_model.py``. Recorded: llama.cpp 0c1e57098 of the PyPI source package llama-cpp-python
0.3.36, built for a CPU.
"""

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib import request

from tests.ports import free_port

FILE = Path(__file__).with_name("llama_0.3.36.jsonl")
_SIZE = re.compile(r"(?:KV|state) buffer size = +([\d.]+) MiB")


def start(program: str, model: Path, flags: list[str]) -> dict[str, object]:
    """Sizes of buffers in MiB, in order, and what it says of its slots."""
    port = str(free_port())
    command = [program, "-m", str(model), *flags, "-lv", "4", "--no-warmup", "--port", port]
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
    if not slots:
        raise SystemExit(f"the server does not start: {' '.join(command)}")
    return {"model": model.stem, "flags": flags, "buffers_mib": sizes, "slots": slots}


def ask(
    program: str, model: Path, flags: list[str], prompts: list[tuple[int, int, int]]
) -> dict[str, object]:
    """Tokens that the server says it had cached, prompt by prompt, a token of answer each.

    A prompt is the number of an earlier one (-1 for none), tokens of it, and new tokens.
    """
    port = str(free_port())
    command = [program, "-m", str(model), *flags, "-t", "1", "--no-warmup", "--port", port]
    made, hits = list[list[int]](), list[int]()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        draw = random.Random(1)
        for of, common, new in prompts:
            own = [draw.randrange(2, 512) for _ in range(new)]
            made.append((made[of][:common] if of >= 0 else []) + own)
            body = {"prompt": made[-1], "n_predict": 1, "temperature": 0, "cache_prompt": True}
            hits.append(post(run, port, body)["timings"]["cache_n"])
        run.kill()
    return {"flags": flags, "prompts": prompts, "hits": hits}


def post(
    run: subprocess.Popen[bytes], port: str, body: dict[str, object]
) -> dict[str, dict[str, int]]:
    """The answer to a completion; waits for the server to start."""
    data = json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    for _ in range(150):
        if run.poll() is not None:
            raise SystemExit("the server does not start, or has ended")
        try:
            asked = request.Request(f"http://127.0.0.1:{port}/completion", data, head)
            with request.urlopen(asked) as answer:
                found: dict[str, dict[str, int]] = json.load(answer)
                return found
        except OSError:  # it is not there yet, or loads its model
            time.sleep(0.2)
    run.kill()
    raise SystemExit("the server does not answer")


if __name__ == "__main__":
    program, folder = sys.argv[1], Path(sys.argv[2])
    for row in map(json.loads, FILE.read_text("utf-8").splitlines()):
        if "hits" in row:
            told = ask(program, folder / "small.gguf", row["flags"], row["prompts"])
        else:
            told = start(program, folder / f"{row['model']}.gguf", row["flags"])
        print(json.dumps(told), flush=True)
