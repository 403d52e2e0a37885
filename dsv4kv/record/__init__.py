"""A running server, written down as it serves: its KV events, its requests, its metrics.

A recording is a folder of lines that only grow. Nothing in it can be read back as text: whatever
identifies a prompt, a session or a user is replaced, before it is written, by numbers made with a
secret of that recording, equal where the originals were equal. So what was shared is known, and
what was said is not. By the same numbers a data set of conversations becomes requests that nobody
can read. ``record`` is the room of run records.
"""
