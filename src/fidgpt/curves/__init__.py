"""Curves of runs: their metrics, smoothed and drawn beside each other."""
