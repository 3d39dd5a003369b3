"""Models and configs of other systems, in and out."""

from fidgpt.interop.gpt2 import gpt2_from_hf, load_gpt2, save_gpt2

__all__ = ["gpt2_from_hf", "load_gpt2", "save_gpt2"]
