"""What is learned: the registry of tasks, where their rows come from, and how they become tokens."""
