"""llama.cpp's caches of DeepSeek-V4: whole slots, allocated at start.

Every slot has rows of the window, of both compressed caches and of the indexer, in steps of 256
cells, in the one type of ``--cache-type-k``, and float32 states. Without ``-np`` there are four
slots, each of the whole context.
Source: commit 0c1e57098 (``llama-kv-cache-dsv4.cpp``, ``llama-context.cpp``), run on a CPU.
"""

from fractions import Fraction

from dsv4kv.engines import contract as ct
from dsv4kv.engines.llamacpp import FAMILY
from dsv4kv.errors import ConfigError

_CELLS = 256
_ROW_BYTES = {  # of 512 values
    **dict.fromkeys(("auto", "f16", "bf16", "bfloat16"), 1024),
    "f32": 2048, "q8_0": 544, "q5_1": 384, "q5_0": 352, "q4_1": 320, "q4_0": 288, "iq4_nl": 288,
}  # fmt: skip
_CSA_STATE, _INDEXER_STATE, _HCA_STATE = 65_536, 16_384, 524_288  # kv and score in float32


def pad(cells: int) -> int:
    return -(-cells // _CELLS) * _CELLS


class LlamaEngine(ct.SlotEngine):
    """One version."""

    family = FAMILY
    name = FAMILY.name
    seen_in_logs = True

    def slot_parts(self, deployment: ct.Deployment, tokens: int) -> dict[str, int]:
        row = _ROW_BYTES.get(deployment.cache_dtype)
        if row is None:
            raise ConfigError(
                f"llama.cpp keeps V4's cache in {', '.join(_ROW_BYTES)}, not "
                f"{deployment.cache_dtype!r}: choose one (--cache-type-k)."
            )
        kinds = [layer.kind for layer in ct.held_layers(deployment, self.name)]
        csa, hca, drafts = (kinds.count(kind) for kind in ("csa", "hca", "draft"))
        length, key = pad(tokens), row // 4
        window = min(length, deployment.model.window_tokens + deployment.in_flight_tokens)
        raw = length if deployment.window_slots == "kept" else pad(window)
        states = 1 + (deployment.draft_tokens if drafts else 0)
        # a slot's share of a draft layer's window: keys and values, always in f16
        shared = self.slots(deployment) if deployment.unified_slots else 1
        held = shared * deployment.model.window_tokens + deployment.in_flight_tokens
        drafted = length if deployment.window_slots == "kept" else pad(min(length, held))
        compressed = pad(-(-length // 4))
        return {
            "raw": raw * row * len(kinds),  # of a draft layer in the same file, too
            "CSA": compressed * row * csa,
            "HCA": pad(-(-length // 128)) * row * hca,
            "indexer": compressed * key * csa,
            "states": states * ((_CSA_STATE + _INDEXER_STATE) * csa + _HCA_STATE * hca),
            "MTP": 2 * drafted * _ROW_BYTES["f16"] // shared * drafts,
        }

    host_bytes = 8 * ct.GIB  # --cache-ram

    def saved_bytes(self, deployment: ct.Deployment, tokens: int) -> int:
        """Bytes of a prompt in host memory; of none, a checkpoint's: last windows and states."""
        parts = self.slot_parts(deployment, tokens)
        kinds = [layer.kind for layer in ct.held_layers(deployment, self.name)]
        row = _ROW_BYTES[deployment.cache_dtype]
        entries = (tokens // 4) * kinds.count("csa") * (row + row // 4)
        entries += (tokens // 128) * kinds.count("hca") * row
        window = deployment.model.window_tokens * len(kinds) * row
        return window + parts["states"] + entries + 12 * tokens

    def costs(self, deployment: ct.Deployment) -> tuple[ct.PoolCost, ...]:
        parts = self.slot_parts(deployment, deployment.max_context_tokens)
        slots = self.slots(deployment)
        names = (("raw", "window", "all"), ("CSA", "main", "csa"), ("HCA", "main", "hca"),
                 ("indexer", "indexer", "csa"), ("states", "state", "all"),
                 ("MTP", "window", "draft"))  # fmt: skip
        return tuple(
            ct.PoolCost(pool, kind, 1, shared_bytes=slots * parts[name])
            for name, pool, kind in names
            if parts[name]
        )

    def note(self, deployment: ct.Deployment) -> str:
        parts = self.slot_parts(deployment, deployment.max_context_tokens)
        slots, one = self.slots(deployment), sum(parts.values())
        sizes = [f"{what} {slots * size / ct.MIB:,.2f}" for what, size in parts.items() if size]
        which = "-np 1" if deployment.unified_slots else "A slot"
        fewer = f" {which} takes {one / ct.MIB:,.2f} MiB." if slots > 1 else ""
        return (
            f"{slots} slot{'s' * (slots != 1)} of {pad(deployment.max_context_tokens):,} tokens, "
            f"allocated whole at start: {slots * one / ct.MIB:,.2f} MiB ({', '.join(sizes)})."
            f"{fewer} llama.cpp logs these sizes with -lv 4 only. A prompt reuses an earlier one "
            "up to a checkpoint: 4 tokens before that one's end, a ubatch before these, or the "
            "start of a message."
        )

    def defaults(self, machine: ct.Machine, given: ct.Given) -> ct.Defaults:
        return super().defaults(machine, given) | {
            "memory_fraction": ct.Default(Fraction(1), "llama.cpp takes what it needs"),
            "step_tokens": ct.Default(self.usual_step, "llama.cpp's --ubatch-size"),
            "request_limit": ct.Default(
                4, "llama-server's slots without -np, each of the whole context"
            ),
        }
