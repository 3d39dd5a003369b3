"""fidgpt pre-trains language models in PyTorch from one graph of deferred calls."""

__version__ = "0.1.0"
