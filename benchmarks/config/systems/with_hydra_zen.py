"""hydra-zen: a structured config of every class, made by `builds`, in Hydra's store."""

from functools import cache
from typing import Any

import hydra_zen  # pyright: ignore[reportMissingImports]
import recipe
from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]
from systems import with_hydra


class System(with_hydra.System):
    """Typed by the signatures of the parts."""

    def config(self, num_blocks: int) -> Any:
        return OmegaConf.structured(_structured(num_blocks))

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        store = hydra_zen.ZenStore(deferred_hydra_store=False, overwrite_ok=True)
        store(_structured(num_blocks), name="gpt")
        return with_hydra.composed(changes)

    def build(self, cfg: Any) -> Any:
        return hydra_zen.instantiate(cfg, _convert_="all")

    def save(self, cfg: Any) -> str:
        return hydra_zen.to_yaml(cfg)


def _structured(num_blocks: int) -> Any:
    return recipe.config(num_blocks, lambda part, **values: _config_of(part)(**values))


@cache
def _config_of(part: Any) -> Any:
    return hydra_zen.builds(part, populate_full_signature=True)
