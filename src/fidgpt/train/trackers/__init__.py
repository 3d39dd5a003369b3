"""Trackers of metrics."""
