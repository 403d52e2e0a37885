"""Random prompts that part anywhere, with vLLM's own hashes of their blocks and what hits.

``DSV4KV_ENGINES=FOLDER python -m tests.engines.oracles.chains`` writes the file; the folder is
``make engines``'. ``vllm_chains.py`` says what a line holds; hashes are cut to 16 digits.
"""

import random
from functools import cache
from typing import Any

from tests.engines.oracles import asking

FILE = asking.HERE / "vllm_chains_0.33.0.jsonl.gz"
_DIGITS = 16


def draw_prompts(draw: random.Random, block: int) -> list[list[int]]:
    """Most begin like one before; where they part is around a block's end, or anywhere."""
    prompts: list[list[int]] = []
    for _ in range(8):
        base = draw.choice(prompts) if prompts and draw.random() < 0.8 else []
        near = draw.randrange(1, 6) * block + draw.randint(-1, 2)
        kept = base[: draw.choice([near, draw.randint(0, len(base)), len(base)])]
        own = [draw.randrange(50) for _ in range(draw.randint(1, 4 * block))]
        prompts.append(kept + own)
    return prompts


def ask() -> list[dict[str, Any]]:
    """Every setting with the engine's own answer."""
    settings = [{key: row[key] for key in row.keys() - {"hashes", "hits"}} for row in read()]
    answers = asking.ask("vllm_chains.py", "vllm", settings)
    return [
        row | {"hashes": [[each[:_DIGITS] for each in prompt] for prompt in told["hashes"]],
               "hits": told["hits"]}
        for row, told in zip(settings, answers, strict=True)
    ]  # fmt: skip


@cache
def read() -> list[dict[str, Any]]:
    """All settings with their answers."""
    return asking.read_kept(FILE)


if __name__ == "__main__":
    asking.keep(FILE, ask())
