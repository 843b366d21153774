"""How long a step takes, where its time goes, and how that changes with the number of workers."""
