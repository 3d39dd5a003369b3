"""Runs that are killed, starved and damaged on purpose, and end as if nothing had been."""
