"""Known faults of engines and benchmarks, kept as data, and which of them a server has."""
