"""Directives: how each is read, what it changed, and what was in vain."""
