"""One module per figure or table of the paper, and those beyond it; each has a `STUDY`."""
