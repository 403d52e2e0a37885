"""How it is measured: statistics, the memcpy yardstick and the environment of a run."""
