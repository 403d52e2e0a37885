"""Everything that is shown: tables, charts, sentences and pages, made from records."""
