"""Axes and the points that they make, composed and checked."""
