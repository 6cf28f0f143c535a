"""Real heartbeats: found once in recorded photoplethysmograms, replayed as patients."""
