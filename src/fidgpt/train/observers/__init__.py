"""What accompanies a run: profilers, snapshots of memory, a watchdog, repeatable algorithms."""
