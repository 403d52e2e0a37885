"""What is to be deployed, as far as the size of its cache depends on it."""

from dataclasses import dataclass

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import CacheFormats


@dataclass(frozen=True)
class Deployment:
    """One replica of a model on one rank (GPU): what an engine sizes.

    Attributes:
        model: The model.
        layers: Indices of the layers this rank holds, draft layers left out; None for all.
        draft_layers: Draft (MTP, DSpark) layers this rank holds: sliding window only.
        formats: Entry formats by place.
        max_context_tokens: Longest request (``max_model_len``).
        in_flight_tokens: Tokens one request may have in flight: the chunk budget of a step
            (``max_num_batched_tokens``, ``chunked_prefill_size``) times the batches that run at
            once (vLLM up to 0.25 does not count batches: there it is the chunk budget alone).
        concurrency: Requests to be served at once (``max_num_seqs``, ``max_running_requests``);
            None where it is what is asked for.
        block_tokens: Tokens of context one block covers; None takes the engine's own.
        state_bytes: Bytes of one element of the compressor state: 4 (float32) or 2 (bfloat16).
        online_state: HCA keeps its state as a running softmax.
        draft_tokens: Speculative tokens that may be rolled back.
        window_ratio: SGLang's ``swa_full_tokens_ratio``; None where it is not given.
    """

    model: DSV4Config
    formats: CacheFormats
    max_context_tokens: int
    in_flight_tokens: int
    layers: tuple[int, ...] | None = None
    draft_layers: int = 0
    concurrency: int | None = None
    block_tokens: int | None = None
    state_bytes: int = 4
    online_state: bool = False
    draft_tokens: int = 0
    window_ratio: float | None = None
