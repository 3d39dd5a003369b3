"""What is known of a run before its first step: counts, memory, groups, and how they read."""
