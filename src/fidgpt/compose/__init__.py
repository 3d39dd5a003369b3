"""Composition of configs: directives, the catalogue of what they name, and what explains them."""
