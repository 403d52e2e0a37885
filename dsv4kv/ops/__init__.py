"""What moves bytes: the operations of the cache, their backends and their byte model."""
