"""Whether policies are simulated on the whole trace or on a sample of it."""

from dataclasses import dataclass

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.analysis.outcome import Outcome
from dsv4kv.prefix.analysis.paths import PathTable
from dsv4kv.prefix.analysis.policy import replay_policy
from dsv4kv.prefix.analysis.reuse import Reuse
from dsv4kv.prefix.analysis.sample import Sample, SampledHits, draw_sample

LONG_REFERENCES = 300_000_000
"""Block references × policies × capacities from which on a sample is drawn unasked: half a minute
for long agentic prompts, minutes for short ones."""
_SMALLEST, _LARGEST = 0.05, 0.4  # a smaller sample tells little, a larger one saves little
_RUNS = 2  # a sample is simulated as a whole, and once more in its classes


@dataclass(frozen=True)
class Sampling:
    """What policies were simulated on.

    Attributes:
        automatic: Whether a sample was wanted because the whole trace would take long.
        share: Of the families that were simulated; 1 for the whole trace.
        families: Families of the trace, where a sample was drawn.
        refused: Why the whole trace was simulated though a sample was wanted, at some capacities
            or at all.
    """

    automatic: bool = False
    share: float = 1.0
    families: int = 0
    refused: str = ""


class Simulation:
    """Policies at any capacity.

    Attributes:
        sampling: What they are simulated on.
    """

    def __init__(
        self,
        table: PathTable,
        reuse: Reuse,
        names: tuple[str, ...],
        share: float | None,
        capacities: list[int],
    ) -> None:
        """Draw the sample that was asked for, or one where the simulation would take long.

        Args:
            table: The trace.
            reuse: Its reuse.
            names: Policies.
            share: Of all families, 1 for the whole trace; None leaves the choice here.
            capacities: Blocks of every cache.

        Raises:
            ConfigError: No share, or one that cannot be used and was asked for.
        """
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"--sample {share}: give a share above 0, at most 1 (everything).")
        self._table, self._reuse, self._names = table, reuse, names
        self._sample: Sample | None = None
        self._whole: set[int] = set()
        self.sampling = Sampling()
        wanted = share or self._fitting_share(len(capacities))
        if not names or wanted >= 1:
            return
        try:
            sample = draw_sample(table, reuse, wanted)
            lacks = {c: lack for c in capacities if (lack := sample.lack(c))}
            if share is not None and lacks:
                raise ConfigError(lacks[min(lacks)])
        except ConfigError as error:
            if share is not None:
                raise
            self.sampling = Sampling(automatic=True, refused=str(error))
            return
        self._sample, self._whole = sample, set(lacks)
        refused = lacks[min(lacks)] if lacks else ""
        self.sampling = Sampling(share is None, wanted, sample.families, refused)

    def _fitting_share(self, capacities: int) -> float:
        """The largest sample that does not take long; 1 where the whole trace does not."""
        references = int(self._reuse.blocks.sum()) * len(self._names) * capacities
        fitting = LONG_REFERENCES / (_RUNS * max(1, references))
        return 1.0 if fitting > _LARGEST else max(_SMALLEST, fitting)

    def outcomes(self, blocks: int | None) -> tuple[Outcome, ...]:
        """What policies do on the whole trace; nothing where a sample tells it."""
        if blocks is None or self._tells(blocks):
            return ()
        return tuple(replay_policy(n, self._table, self._reuse, blocks) for n in self._names)

    def estimates(self, blocks: int | None) -> tuple[SampledHits, ...]:
        """What the sample tells of them."""
        if blocks is None or not self._tells(blocks):
            return ()
        assert self._sample is not None
        total = self._table.total_input_tokens
        return tuple(self._sample.estimate(n, self._reuse, total, blocks) for n in self._names)

    def _tells(self, blocks: int) -> bool:
        return self._sample is not None and blocks not in self._whole
