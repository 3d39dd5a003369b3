"""Models of the Hugging Face hub: their configs and weights, read and written."""

from fidgpt.interop.hugging_face.hub import from_hf, load_hf, save_hf

__all__ = ["from_hf", "load_hf", "save_hf"]
