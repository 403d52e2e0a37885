"""What a log's numbers came from: engine version, model, blocks and tokens in flight."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dsv4kv.engines.contract import Deployment, Engine
from dsv4kv.engines.logs.read import Reading, StartupLog


@dataclass(frozen=True)
class Recovery:
    """One configuration whose numbers are those of a log.

    Attributes:
        engine: Whose rules.
        deployment: What they were applied to.
        available_bytes: Memory that yields the log's blocks.
        units: Blocks, or full tokens.
        flight_range: Least and most tokens in flight that give the same numbers.
        score: How well it agrees with the log's words, most important first.
        exact: Its numbers are the log's; otherwise the nearest that the rules can give.
    """

    engine: Engine
    deployment: Deployment
    available_bytes: int
    units: int
    flight_range: tuple[int, int]
    score: tuple[int, ...] = ()
    exact: bool = True

    @property
    def title(self) -> str:
        """Engine, model and what distinguishes it, for lists of candidates."""
        deployment = self.deployment
        drafts = deployment.draft_layers
        parts = [
            self.engine.name,
            deployment.model.name,
            f"{drafts} draft layer{'s' if drafts != 1 else ''}",
            f"indexer {deployment.formats.indexer.name}",
        ]
        if self.engine.name.startswith("vllm"):
            parts.append(f"{deployment.in_flight_tokens:,} tokens in flight")
        if deployment.state_bytes == 2:
            parts.append("bf16 state")
        return ", ".join(parts)

    def with_flight(self, tokens: int) -> "Recovery":
        """The same with another number of tokens in flight."""
        return replace(self, deployment=replace(self.deployment, in_flight_tokens=tokens))


def recover(log: StartupLog, reading: Reading) -> list[Recovery]:
    """Configurations that print what the log says, the likeliest first; else the nearest.

    Raises:
        ConfigError: The log names a model whose cache is not DeepSeek-V4's.
    """
    from dsv4kv.engines.sglang.log import nearest_sglang, recover_sglang
    from dsv4kv.engines.vllm.log import nearest_vllm, recover_vllm

    solve, nearest = {
        "vllm": (recover_vllm, nearest_vllm),
        "sglang": (recover_sglang, nearest_sglang),
    }[log.family]
    found = list(_distinct(solve(log, reading))) or list(_distinct(nearest(log, reading)))
    return sorted(found, key=lambda recovery: recovery.score, reverse=True)


def likeliest(recoveries: list[Recovery]) -> list[Recovery]:
    """Those that agree with the log as well as the first does."""
    return [found for found in recoveries if found.score == recoveries[0].score]


def _distinct(found: Iterable[Recovery]) -> Iterator[Recovery]:
    """Of configurations with one title the first."""
    seen = set()
    for recovery in found:
        if (key := (recovery.title, recovery.units)) not in seen:
            seen.add(key)
            yield recovery
