"""The registry of tasks, the sources of their rows, and their tokens."""
