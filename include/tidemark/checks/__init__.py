"""Checks of a running application: pure decisions over samples, and the code that takes the samples."""
