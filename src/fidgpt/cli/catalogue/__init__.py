"""What can be named on the command line, and called."""
