"""Import and export of models and configs of other systems; modules are loaded on first use."""

from typing import TYPE_CHECKING

from fidgpt.late import lazy_exports

if TYPE_CHECKING:
    from fidgpt.interop.directives_from import directives_of
    from fidgpt.interop.fine_tuning import read_fine_tuning
    from fidgpt.interop.gguf import save_gguf
    from fidgpt.interop.hugging_face import from_hf, load_hf, save_hf
    from fidgpt.interop.levanter import read_levanter
    from fidgpt.interop.recipes import Mapped
    from fidgpt.interop.targets import read_targets, write_targets
    from fidgpt.interop.torchtitan import read_torchtitan
    from fidgpt.interop.torchtune import read_torchtune
    from fidgpt.interop.trained_models import chat, use_distillation
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "trained_models": ("chat", "use_distillation"),
            "directives_from": ("directives_of",),
            "fine_tuning": ("read_fine_tuning",),
            "gguf": ("save_gguf",),
            "hugging_face": ("from_hf", "load_hf", "save_hf"),
            "levanter": ("read_levanter",),
            "recipes": ("Mapped",),
            "targets": ("read_targets", "write_targets"),
            "torchtitan": ("read_torchtitan",),
            "torchtune": ("read_torchtune",),
        },
    )

__all__ = [
    "Mapped",
    "chat",
    "directives_of",
    "from_hf",
    "load_hf",
    "read_fine_tuning",
    "read_levanter",
    "read_targets",
    "read_torchtitan",
    "read_torchtune",
    "save_gguf",
    "save_hf",
    "use_distillation",
    "write_targets",
]
