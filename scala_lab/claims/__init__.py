"""The claims of the paper, and one of ours, each with the rule that decides it."""
