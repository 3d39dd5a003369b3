"""The nodes of a config graph, their arguments, and copies of both."""
