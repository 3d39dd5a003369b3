"""What is checked before a run: its custom components, tried on copies."""
