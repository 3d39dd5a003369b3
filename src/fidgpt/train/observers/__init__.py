"""What looks on while a run is under way: profilers, snapshots of memory, a watchdog."""
