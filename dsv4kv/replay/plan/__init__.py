"""The cheapest deployment that keeps latencies on a trace: bounded, searched, simulated."""
