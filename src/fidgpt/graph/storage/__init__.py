"""Graphs as files: the format, names that a file may ask for, and the identity of a graph."""
