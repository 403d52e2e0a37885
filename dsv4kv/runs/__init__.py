"""Run records: their schema, their files, and the quantities that they hold."""
