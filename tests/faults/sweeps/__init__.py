"""Sweeps whose points, drivers and files are disturbed, and which lose nothing by it."""
