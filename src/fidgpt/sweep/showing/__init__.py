"""What somebody sees of a sweep that runs."""
