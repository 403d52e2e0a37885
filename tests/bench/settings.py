"""Bench configurations that run in a second, with data or without."""

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import LoadedConfig, load_config
from tests.examples import FULL

TINY = (
    "workload.synthetic.requests=3",
    "workload.synthetic.input.low=20",
    "workload.synthetic.input.high=150",
    "workload.synthetic.output.low=3",
    "workload.synthetic.output.high=8",
    "measure.warmup_steps=1",
    "measure.verify_every=2",
    "measure.memcpy_bytes=1MiB",
)
ANY_STEP = () if FULL else ("workload.step=gather",)
"""For tests that no step's reads matter to: a gather is the cheapest, others are as shipped."""

BOOKS = "workload.data=none"  # only the bookkeeping


def load_tiny(*settings: str) -> LoadedConfig:
    """The shipped smoke configuration with three requests of up to 150 tokens."""
    given = {setting.partition("=")[0] for setting in settings}
    tiny = [setting for setting in TINY if setting.partition("=")[0] not in given]
    return load_config("smoke", [*tiny, *settings])


def tiny_config(*settings: str) -> BenchConfig:
    return load_tiny(*settings).config
