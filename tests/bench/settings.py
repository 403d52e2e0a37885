"""Bench configurations that run in a second, with data or without."""

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import LoadedConfig, load_config

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
BOOKS = "workload.data=none"  # only the bookkeeping


def load_tiny(*settings: str) -> LoadedConfig:
    """The shipped smoke configuration with three requests of up to 150 tokens."""
    given = {setting.partition("=")[0] for setting in settings}
    tiny = [setting for setting in TINY if setting.partition("=")[0] not in given]
    return load_config("smoke", [*tiny, *settings])


def tiny_config(*settings: str) -> BenchConfig:
    return load_tiny(*settings).config
