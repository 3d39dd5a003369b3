"""What commands print instead of training."""
