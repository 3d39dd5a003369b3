"""Batches as a pure function of their number."""
