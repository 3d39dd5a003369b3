"""What can be known to be wrong with a graph before it is built, and what nobody reads after."""
