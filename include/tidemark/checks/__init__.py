"""What an operator asks of a running application: pure decisions over samples, and how the samples are taken."""
