"""What is wrong: with a cache, a dump of one, a log, an engine, this machine."""
