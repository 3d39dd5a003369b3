"""Import and export of models and configs of other systems; modules are loaded on first use."""

from typing import TYPE_CHECKING

from fidgpt.late import lazy_exports

if TYPE_CHECKING:
    from fidgpt.interop.directives_from import directives_of as directives_of
    from fidgpt.interop.fine_tuning import read_fine_tuning as read_fine_tuning
    from fidgpt.interop.gguf import save_gguf as save_gguf
    from fidgpt.interop.hugging_face import from_hf as from_hf
    from fidgpt.interop.hugging_face import load_hf as load_hf
    from fidgpt.interop.hugging_face import save_hf as save_hf
    from fidgpt.interop.levanter import read_levanter as read_levanter
    from fidgpt.interop.recipes import Mapped as Mapped
    from fidgpt.interop.targets import read_targets as read_targets
    from fidgpt.interop.targets import write_targets as write_targets
    from fidgpt.interop.torchtitan import read_torchtitan as read_torchtitan
    from fidgpt.interop.torchtune import read_torchtune as read_torchtune
    from fidgpt.interop.trained_models import chat as chat
    from fidgpt.interop.trained_models import use_distillation as use_distillation
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "directives_from": ("directives_of",),
            "fine_tuning": ("read_fine_tuning",),
            "gguf": ("save_gguf",),
            "hugging_face": ("from_hf", "load_hf", "save_hf"),
            "levanter": ("read_levanter",),
            "recipes": ("Mapped",),
            "targets": ("read_targets", "write_targets"),
            "torchtitan": ("read_torchtitan",),
            "torchtune": ("read_torchtune",),
            "trained_models": ("chat", "use_distillation"),
        },
    )
