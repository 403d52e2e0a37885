"""Start-up logs of serving engines: read, recover the configuration, explain the number."""
