"""The loop, its workers, checkpoints and evaluation."""
