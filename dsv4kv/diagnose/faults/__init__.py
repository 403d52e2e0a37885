"""Known faults of engines and of benchmarks, kept as data, and what of them a server has."""
