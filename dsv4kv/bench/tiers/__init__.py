"""The cache beyond one GPU's memory: what is kept of a prefix, where, and how it comes back."""
