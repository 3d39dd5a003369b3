"""Models of Hugging Face's hub, in and out: a config, its weights, and a directory of our own."""

from fidgpt.interop.hugging_face.load import from_hf, load_hf
from fidgpt.interop.hugging_face.save import save_hf

__all__ = ["from_hf", "load_hf", "save_hf"]
