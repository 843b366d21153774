"""Where runs are kept, and how many of them are carried out: the store, sweeps and executors."""
