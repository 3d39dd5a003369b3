"""The command line: a thin face on the functions of the graph."""
