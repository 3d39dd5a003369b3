"""Named configs: each function returns the whole graph of a run."""

import pkgutil
import re
from importlib import import_module

import fiddle as fdl

from fidgpt.configs.by_depth import nanochat
from fidgpt.configs.recipes import RECIPES, with_recipe
from fidgpt.configs.small import base, debug
from fidgpt.train import Trainer

# Modules with functions that give models of published sizes.
_FAMILIES = (
    *("cohere", "deepseek2", "deepseek3", "falcon", "gemma2", "gemma3", "gpt2", "gpt_neox"),
    *("gpt_oss", "granite", "granite4", "kimi_linear", "lfm2", "llama", "minimax"),
    *("mistral", "mixtral", "olmo2", "olmoe", "phi3", "qwen2", "qwen3", "qwen3_moe"),
    *("qwen3_next", "smollm"),
)
_modules = [vars(import_module(f"fidgpt.configs.{name}")) for name in _FAMILIES]
_configs = {"base": base, "debug": debug, "nanochat": nanochat}
# The names of their functions stand here for the runs that made these models.
for _module in _modules:
    for _name in RECIPES.keys() & _module.keys():
        _configs[_name] = with_recipe(_module[_name])
_parts = re.compile(r"(\d+)").split
_order = sorted(_configs, key=lambda name: [int(x) if x.isdigit() else x for x in _parts(name)])
__all__: list[str]
globals().update(_configs, __all__=_order)


def from_hf(directory: str) -> fdl.Config[Trainer]:
    """The model, tokenizer and weights of a local directory in the format of the hub."""
    # By name, as the catalogue of configs has it: what reads such files imports the configs.
    return pkgutil.resolve_name("fidgpt.interop.hugging_face:from_hf")(directory)
