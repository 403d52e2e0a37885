"""SGLang: how it sizes its pools, what it logs, how it reuses prefixes."""
