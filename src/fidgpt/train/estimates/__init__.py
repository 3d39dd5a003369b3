"""What a run will cost: memory, operations, and the fastest way to compute on this machine."""
