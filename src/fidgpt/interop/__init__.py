"""Models and configs of other systems, in and out."""

from fidgpt.interop.directives_from import directives_of
from fidgpt.interop.hugging_face import from_hf, load_hf, save_hf
from fidgpt.interop.levanter import Mapped, read_levanter
from fidgpt.interop.targets import read_targets
from fidgpt.interop.targets_out import write_targets

__all__ = [
    "Mapped",
    "directives_of",
    "from_hf",
    "load_hf",
    "read_levanter",
    "read_targets",
    "save_hf",
    "write_targets",
]
