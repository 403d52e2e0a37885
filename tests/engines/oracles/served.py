# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""An engine's own manager, prompt by prompt: ``python served.py ENGINE FOLDER`` answers lines.

A line is either a cache to begin anew, a trace as ``vllm_manager`` or ``sglang_manager`` reads it
without its prompts, or the tokens of a prompt. To each the answer is ``[tokens that it hit]``; -1
where it cannot run.
"""

import json
import sys
from array import array
from pathlib import Path

LONGEST = 65_536


def open_vllm(engine, trace):
    """Serves prompts by vLLM's ``KVCacheManager``."""
    manager = vllm_manager.open_manager(engine, trace)
    spelled = trace | {"page": 1}  # a prompt's pages are its tokens

    def serve(tokens, number):
        asked = spelled | {"prompts": {number: (len(tokens), tokens)}}
        return vllm_manager.serve(engine, manager, asked, number)

    return serve


def open_sglang(engine, trace):
    """Serves prompts by SGLang's ``UnifiedRadixCache``."""
    sglang_manager.PAGE = sglang_manager.driven.PAGE = trace["page"]
    free = engine.envs.SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS
    free.set(trace["free"])
    cache = sglang_manager.open_cache(engine, trace | {"prompts": [(LONGEST, [])]})
    most = min(trace["pages"], trace["window_pages"] or trace["pages"]) * trace["page"]

    def serve(tokens, number):
        needed = len(tokens) if trace["window_pages"] is None else trace["chunk_tokens"]
        if needed > most or len(tokens) > trace["pages"] * trace["page"]:
            return -1
        return sglang_manager.serve(engine, cache, array("q", tokens), trace["chunk_tokens"])

    return serve


if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    if name == "vllm":
        import vllm_manager

        engine, begin = vllm_manager.load(folder), open_vllm
    else:
        import sglang_manager

        engine, begin = sglang_manager.load(folder), open_sglang
    serve, number = None, 0
    for line in sys.stdin:
        told = json.loads(line)
        if isinstance(told, dict):
            serve, hit = begin(engine, told), 0
        else:
            number += 1
            hit = serve(told, number)
        print(json.dumps([hit]), flush=True)
