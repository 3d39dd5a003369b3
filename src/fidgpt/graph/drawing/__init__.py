"""Graphs as pictures, through Graphviz."""
