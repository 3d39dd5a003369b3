"""Who said what: recorded as a graph is made, told when somebody asks, kept beside a file."""
