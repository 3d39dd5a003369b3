"""Tags as variables, and the graph as their scope."""
