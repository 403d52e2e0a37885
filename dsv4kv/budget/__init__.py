"""What a cache needs: memory of GPUs, rules of engines, and what fits. Imports no torch."""
