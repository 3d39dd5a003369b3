"""What differs between two graphs: parts are matched by what they are, then compared."""
