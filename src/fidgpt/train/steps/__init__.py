"""What becomes of a step: its gradients, whether it is taken, what is remembered of it."""
