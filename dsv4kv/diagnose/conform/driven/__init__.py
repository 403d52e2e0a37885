"""What runs in the engine's Python, which may lack dsv4kv: only this folder and the engine."""
