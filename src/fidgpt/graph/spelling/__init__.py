"""The way back from a graph to directives that one would type."""
