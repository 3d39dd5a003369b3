"""Mixers with a state of fixed size for each layer, in place of keys and values."""
