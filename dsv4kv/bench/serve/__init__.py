"""The loop that serves requests on real bytes, step by step."""
