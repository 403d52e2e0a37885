"""Configurations of ``dsv4kv bench``: their schema, files, overrides and sweeps."""

from dsv4kv.config.axes import AxisCase, expand_axes
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import LoadedConfig, load_config, shipped_names

__all__ = [
    "AxisCase",
    "BenchConfig",
    "LoadedConfig",
    "expand_axes",
    "load_config",
    "shipped_names",
]
