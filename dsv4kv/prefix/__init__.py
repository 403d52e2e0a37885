"""What is reused: prefixes of prompts whose cache is still there, and what goes first."""
