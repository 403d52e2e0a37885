"""Measuring: timers, statistics, memcpy bandwidth, telemetry and the environment of a run."""
