"""Paths and selectors: from what somebody typed to the places of a graph that it means."""
