"""Reading and writing of Hugging Face models: configs and weights."""

from fidgpt.interop.hugging_face.hub import from_hf, load_hf, save_hf

__all__ = ["from_hf", "load_hf", "save_hf"]
