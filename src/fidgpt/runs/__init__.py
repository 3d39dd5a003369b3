"""Runs: a composition built, tried, tuned, shrunk, and given a directory to run in."""
