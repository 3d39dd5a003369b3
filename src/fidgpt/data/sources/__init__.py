"""Where documents come from, and how files hold them."""
