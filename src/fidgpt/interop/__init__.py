"""Models and configs of other systems, in and out."""

from fidgpt.interop.directives_from import directives_of
from fidgpt.interop.gpt2 import gpt2_from_hf, load_gpt2, save_gpt2
from fidgpt.interop.levanter import Mapped, read_levanter
from fidgpt.interop.targets import read_targets
from fidgpt.interop.targets_out import write_targets

__all__ = [
    "Mapped",
    "directives_of",
    "gpt2_from_hf",
    "load_gpt2",
    "read_levanter",
    "read_targets",
    "save_gpt2",
    "write_targets",
]
