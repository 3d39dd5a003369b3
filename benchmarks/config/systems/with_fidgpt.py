"""fidgpt: the model sets the width once, and the parts inside it inherit the width."""

from typing import Any

import fiddle as fdl
import parts
import recipe

from fidgpt import graph
from fidgpt.compose.catalogue import Catalogue
from fidgpt.compose.composition import compose
from fidgpt.graph.edits import set_text

ALLOWED = ("parts", "systems")


class System:
    """What `train.py` calls, on another graph."""

    def config(self, num_blocks: int) -> fdl.Config:
        return gpt(num_blocks)

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        sets = [f"set:{path}={value}" for path, value in changes.items()]
        return compose([f"config:gpt({num_blocks})", *sets], CATALOGUE).config

    def override(self, cfg: Any, changes: dict[str, Any]) -> Any:
        for path, value in changes.items():
            set_text(cfg, path, str(value))
        return cfg

    def assign(self, cfg: Any, changes: dict[str, Any]) -> Any:
        for path, value in changes.items():
            graph.find_parameter(cfg, path).set(value)
        return cfg

    def check(self, cfg: Any) -> Any:
        return graph.check_and_bind(cfg)

    def build(self, cfg: Any) -> Any:
        return graph.build(cfg)

    def save(self, cfg: Any) -> str:
        return graph.dump(cfg)

    def load(self, text: str) -> Any:
        return graph.load(text, allowed=ALLOWED)

    def diff(self, old: Any, new: Any) -> Any:
        return graph.diff(old, new)

    def show(self, cfg: Any) -> str:
        return graph.outline(graph.check_and_bind(cfg))


class HiddenDim(fdl.Tag):
    """Width of the residual stream."""


def gpt(num_blocks: int) -> fdl.Config:
    """What `config:gpt` names."""
    cfg = recipe.config(num_blocks, _make)
    cfg.model.hidden_dim = HiddenDim.new(parts.Gpt.hidden_dim)
    return cfg


def _make(part: Any, **values: Any) -> fdl.Config:
    if "hidden_dim" in values:
        values["hidden_dim"] = HiddenDim.new()
    return fdl.Config(part, **values)


CATALOGUE = Catalogue(configs={"gpt": gpt}, fiddlers={}, tags={"HiddenDim": HiddenDim})
