"""Real heartbeats: detected once in recorded photoplethysmograms, replayed as those of patients."""
