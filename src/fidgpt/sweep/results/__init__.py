"""What came of the points, as plain files."""
