"""Forms in which a graph is printed, beside its outline."""
