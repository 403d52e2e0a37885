"""How a run is told: its record and the tables made from it."""
