"""A corpus as token ids on the disk: written once, opened for reading."""
