"""``bench transfer``: a prefill cache and a decode cache in two processes, and the way between."""
