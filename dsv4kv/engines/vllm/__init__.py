"""vLLM: how it sizes its cache, what it logs, how it reuses prefixes."""
