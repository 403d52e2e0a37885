# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""vLLM's own scheduler serves requests in a closed loop, and says what it schedules.

``python vllm_scheduler.py FOLDER < questions``: a JSON object a line with ``blocks``, ``running``,
``chunk_tokens``, ``retention``, ``concurrency``, ``caches_answers``, ``one_group`` and
``requests`` as ``[pages, tokens, output]``.
Out: for every question its steps, each the tokens scheduled of every request by number; an empty
step at the end where nothing can go on.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

sys.path.append(str(Path(__file__).parents[3] / "dsv4kv" / "diagnose" / "conform"))
from driven import vllm
from driven.vllm import PAGE

SETTINGS = {"speculation": "none", "draft_tokens": 0, "ahead": False, "context": 1 << 20}


def serve(engine, asked):
    """Steps until every request has ended, as many at once as ``concurrency``."""
    with one_group() if asked["one_group"] else nullcontext():
        scheduler = vllm.open_scheduler(engine, SETTINGS | asked)
        hasher = vllm.open_hasher(engine, scheduler)
    if not asked["caches_answers"]:
        cache_prompts_only(scheduler.kv_cache_manager.coordinator)
    left, steps = list(enumerate(asked["requests"])), []
    while left or scheduler.requests:
        while left and len(scheduler.requests) < asked["concurrency"]:
            number, (pages, tokens, output) = left.pop(0)
            request = engine.Request(
                str(number),
                [page * PAGE + at for page in pages for at in range(PAGE)][:tokens],
                engine.SamplingParams(max_tokens=output, ignore_eos=True),
                None,
                block_hasher=hasher,
            )
            scheduler.add_request(request)
        output = scheduler.schedule()
        steps.append({int(rid): n for rid, n in output.num_scheduled_tokens.items()})
        if not steps[-1]:
            break
        ids = list(output.num_scheduled_tokens)
        sampled = [answer(scheduler.requests[rid]) for rid in ids]
        made = engine.ModelRunnerOutput(ids, {rid: n for n, rid in enumerate(ids)}, sampled)
        scheduler.update_from_output(output, made)
    return steps


def one_group():
    """Context alone, hashed by its blocks."""
    groups = vllm.groups_of
    return patch.multiple(vllm, groups_of=lambda *asked: groups(*asked)[:1], GRAIN=PAGE)


def cache_prompts_only(coordinator):
    """Let blocks that decoding fills be nobody's."""
    cache = coordinator.cache_blocks

    def up_to_the_prompt(request, tokens):
        return cache(request, min(tokens, request.num_prompt_tokens))

    coordinator.cache_blocks = up_to_the_prompt


def answer(request):
    """A token that no prompt has, where a step ends with all that is known."""
    known = request.num_tokens
    return (
        [-known - (int(request.request_id) << 32)] if request.num_computed_tokens >= known else []
    )


def main():
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints is no answer
    engine = vllm.load(sys.argv[1])
    for line in sys.stdin:
        told.write(json.dumps(serve(engine, json.loads(line))) + "\n")
        told.flush()


if __name__ == "__main__":
    main()
