"""Plain Fiddle: its flag, its JSON, its diff."""

import sys
from typing import Any

import fiddle as fdl
import recipe
from absl import flags
from fiddle import absl_flags, diffing, printing
from fiddle.absl_flags import utils
from fiddle.experimental import serialization
from parts import assign


class System:
    """Plain Fiddle."""

    def config(self, num_blocks: int) -> fdl.Config:
        return gpt(num_blocks)

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        holder = flags.FlagValues()
        flag = absl_flags.DEFINE_fiddle_config(
            "config",
            help_string="The config.",
            default_module=sys.modules[__name__],
            flag_values=holder,
        )
        sets = [f"--config=set:{_text(path, value)}" for path, value in changes.items()]
        holder(["program", f"--config=config:gpt({num_blocks})", *sets])
        return flag.value

    def override(self, cfg: Any, changes: dict[str, Any]) -> Any:
        for path, value in changes.items():
            utils.set_value(cfg, _text(path, value))
        return cfg

    def assign(self, cfg: Any, changes: dict[str, Any]) -> Any:
        return assign(cfg, changes)

    def build(self, cfg: Any) -> Any:
        return fdl.build(cfg)

    def save(self, cfg: Any) -> str:
        return serialization.dump_json(cfg)

    def load(self, text: str) -> Any:
        return serialization.load_json(text)

    def diff(self, old: Any, new: Any) -> Any:
        return list(diffing.build_diff(old, new).changes)

    def show(self, cfg: Any) -> str:
        return printing.as_str_flattened(cfg)


def gpt(num_blocks: int) -> fdl.Config:
    """What `config:gpt` names."""
    return recipe.config(num_blocks, fdl.Config)


def _text(path: str, value: Any) -> str:
    return f"{path}={value!r}"  # Fiddle reads a text only in quotes
