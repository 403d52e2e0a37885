"""What SGLang prints of its pools, word for word; where it refuses to start, why.

Source: SGLang 0.5.15 to 0.5.23, ``pool_configurator.py``.
"""

from collections.abc import Mapping

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.defaults import GIB
from dsv4kv.engines.sglang.pools import Pools

STARVED = "Not enough memory. Please try to increase --mem-fraction-static."


def slice_line(deployment: Deployment) -> str:
    """Which layers a rank of a pipeline holds; nothing without one."""
    if deployment.layers is None:
        return ""
    held, every = deployment.layers, len(deployment.model.compress_ratios)
    return (
        f"DSV4 pool PP slice: rank={deployment.stage} layers=[{held[0]},{held[-1] + 1}) "
        f"local={len(held)}/{every}"
    )


def calculation_line(
    pools: Pools, available_bytes: int, fixed: Mapping[str, float], full: int
) -> str:
    """Prices and full tokens."""
    build = pools.build
    shown = [f"{flag}=False" for flag in build.flags]
    shown.append(f"bytes_per_full_token={pools.bytes_per_full_token:.2f}")
    shown.append(f"available_bytes={available_bytes / GIB:.2f} GB")
    shown += [f"{field}={fixed[field] / GIB:.2f} GB" for field in build.fields]
    shown.append(f"full_token={full}")
    return f"DSV4 memory calculation: {', '.join(shown)}"


def refusal(pools: Pools, available_bytes: int, full: int) -> str:
    """Why it does not start; nothing where it does."""
    windows = pools.fixed_bytes(0)["swa_fixed"]
    if pools.request_windows:
        if full:
            return ""
        return (
            f"The DSV4 SWA pool cap ({pools.fixed_window_tokens} tokens, {windows / GIB:.2f} GB) "
            "leaves no room for the full KV pool within the available "
            f"{available_bytes / GIB:.2f} GB. Reduce --max-running-requests, lower "
            "--swa-prefix-tails or SGLANG_SWA_EVICTION_INTERVAL, or increase "
            "--mem-fraction-static."
        )
    window, page = pools.deployment.model.window_tokens, pools.page_tokens
    slots = pools.sizes(full, 0).swa
    if pools.build.checks_windows and slots <= window + page:
        return (
            f"SWA pool ({slots} tokens) cannot hold even one request: the prefill admission floor "
            f"is sliding_window_size ({window}) + page_size ({page}). Increase "
            "--swa-full-tokens-ratio or the total KV budget."
        )
    return "" if full else STARVED
