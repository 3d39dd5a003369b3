"""How the points of a sweep are run: here, and the seam for other engines."""
