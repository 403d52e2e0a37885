"""ds4's memory of DeepSeek-V4: one live session in float32, and sessions on disk.

Source: antirez/ds4 8d57664 (``ds4.c``); its printed context buffers and ds4-bench's payloads.
"""

from dsv4kv.engines import contract as ct
from dsv4kv.engines.ds4 import FAMILY

_ROW, _KEY = 2048, 512  # bytes of 512 and 128 float32 values
_MOST_RING = 8192
_STATES = {"csa": 81_920, "hca": 524_288}
_HEAD = 517_516  # of a file: logits, tokens, sizes


class Ds4Engine(ct.SlotEngine):
    """One version."""

    family = FAMILY
    name = FAMILY.name
    seen_in_logs = True
    usual_step = 2048

    def slot_parts(self, deployment: ct.Deployment, tokens: int) -> dict[str, int]:
        """Bytes of the live session, by buffer; states are not in the printed sum."""
        csa, hca, layers = _counts(deployment)
        chunk = min(deployment.in_flight_tokens, tokens)
        window = min(deployment.model.window_tokens + chunk, tokens)
        ring = min(-(-window // 256) * 256, _MOST_RING)
        rows = tokens // 4 + 2
        return {
            "ring": layers * ring * _ROW,
            "compressed": csa * rows * (_ROW + _KEY) + hca * (tokens // 128 + 2) * _ROW,
            "scratch": 2 * rows * chunk * 4,
            "states": csa * _STATES["csa"] + hca * _STATES["hca"],
        }

    host_bytes = 0  # without --kv-disk-dir

    def saved_bytes(self, deployment: ct.Deployment, tokens: int) -> int:
        """Bytes of a session's payload on disk (``kvcache_bytes`` of ds4-bench)."""
        csa, hca, layers = _counts(deployment)
        window = layers * min(tokens, deployment.model.window_tokens) * _ROW
        entries = csa * (tokens // 4) * (_ROW + _KEY) + hca * (tokens // 128) * _ROW
        states = csa * _STATES["csa"] + hca * _STATES["hca"]
        return _HEAD + 4 * tokens + window + entries + states

    def costs(self, deployment: ct.Deployment) -> tuple[ct.PoolCost, ...]:
        parts = self.slot_parts(deployment, deployment.max_context_tokens)
        pools = {"ring": "window", "compressed": "main", "scratch": "tables", "states": "state"}
        return tuple(
            ct.PoolCost(pools[n], "all", 1, shared_bytes=size) for n, size in parts.items()
        )

    def note(self, deployment: ct.Deployment) -> str:
        context = deployment.max_context_tokens
        parts = self.slot_parts(deployment, context)
        printed = (sum(parts.values()) - parts["states"]) / ct.MIB
        disk = self.saved_bytes(deployment, context) / ct.MIB
        return (
            f"One live session: context buffers {printed:,.2f} MiB, as it prints; "
            f"{parts['states'] / ct.MIB:,.2f} MiB of states are not in that. On disk such a "
            f"session takes {disk:,.2f} MiB."
        )

    def defaults(self, machine: ct.Machine, given: ct.Given) -> ct.Defaults:
        return super().defaults(machine, given) | {
            "step_tokens": ct.Default(self.usual_step, "ds4's prefill chunk"),
            "request_limit": ct.Default(1, "ds4 has one live session"),
        }


def _counts(deployment: ct.Deployment) -> tuple[int, int, int]:
    kinds = [layer.kind for layer in ct.held_layers(deployment, "ds4")]
    return kinds.count("csa"), kinds.count("hca"), len(kinds) - kinds.count("draft")
