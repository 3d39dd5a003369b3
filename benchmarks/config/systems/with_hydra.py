"""Hydra with OmegaConf: a tree of `_target_` in the config store, composed, saved as YAML."""

from typing import Any

import parts
import recipe
from hydra import compose, initialize  # pyright: ignore[reportMissingImports]
from hydra.core.config_store import ConfigStore  # pyright: ignore[reportMissingImports]
from hydra.utils import instantiate  # pyright: ignore[reportMissingImports]
from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]


class System:
    """A tree without a schema."""

    def config(self, num_blocks: int) -> Any:
        return OmegaConf.create(_tree(num_blocks))

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        ConfigStore.instance().store(name="gpt", node=_tree(num_blocks))
        return composed(changes)

    def override(self, cfg: Any, changes: dict[str, Any]) -> Any:
        cfg.merge_with_dotlist(_dotted(changes))
        return cfg

    def assign(self, cfg: Any, changes: dict[str, Any]) -> Any:
        for path, value in changes.items():
            OmegaConf.update(cfg, path, value)
        return cfg

    def build(self, cfg: Any) -> Any:
        return instantiate(cfg, _convert_="all")

    def save(self, cfg: Any) -> str:
        return OmegaConf.to_yaml(cfg)

    def load(self, text: str) -> Any:
        return OmegaConf.create(text)

    def diff(self, old: Any, new: Any) -> Any:
        return parts.differences(OmegaConf.to_container(old), OmegaConf.to_container(new))

    def show(self, cfg: Any) -> str:
        return OmegaConf.to_yaml(cfg, resolve=True)


def composed(changes: dict[str, Any]) -> Any:
    """What is in the store under the name `gpt`, with changes."""
    with initialize(version_base=None, config_path=None):
        return compose("gpt", overrides=_dotted(changes))


def _tree(num_blocks: int) -> Any:
    return recipe.config(
        num_blocks, lambda part, **values: {"_target_": f"parts.{part.__name__}", **values}
    )


def _dotted(changes: dict[str, Any]) -> list[str]:
    paths = (path.replace("[", ".").replace("]", "") for path in changes)
    return [f"{path}={value}" for path, value in zip(paths, changes.values(), strict=True)]
