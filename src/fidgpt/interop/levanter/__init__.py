"""Training files of Levanter as directives: one module for each section of such a file."""

from fidgpt.interop.levanter.reading import Mapped, read_levanter

__all__ = ["Mapped", "read_levanter"]
