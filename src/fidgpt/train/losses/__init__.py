"""What is minimised: cross-entropy in pieces, terms beside it, and the objective of a batch."""
