"""A request's cache moved to another process: found there by logical position.

In ``tiers``, since it moves the same families as every other way out of a GPU's memory; what is
measured of it, and the executor that fills caches for that, are a room above (``moving``).

The receiver reads: it knows where rows are on both sides, so what differs between two caches
(blocks, page sizes, rings) is its arithmetic alone, and what has come is compared with the
sender's digests.
"""
