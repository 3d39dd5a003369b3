"""What somebody typed, read as values, calls and formulas."""
