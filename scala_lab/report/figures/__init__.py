"""Figures from tables and results: data in, a matplotlib Figure out, no files."""
