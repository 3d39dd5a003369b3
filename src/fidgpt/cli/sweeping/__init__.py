"""What the command `sweep.py` is told: its flags, their places, and what runs the points."""
