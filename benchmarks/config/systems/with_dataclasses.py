"""The floor: dataclasses, assignment, JSON, and no library; nothing is checked or loaded."""

import json
from dataclasses import asdict
from typing import Any

import parts
import recipe


class System:
    """Dataclasses alone; also what the systems have in common whose configs are dataclasses."""

    def config(self, num_blocks: int) -> Any:
        return recipe.config(num_blocks, recipe.plain)

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        return self.assign(self.config(num_blocks), changes)

    def assign(self, cfg: Any, changes: dict[str, Any]) -> Any:
        return parts.assign(cfg, changes)

    def build(self, cfg: Any) -> Any:
        return parts.built(cfg)

    def save(self, cfg: Any) -> str:
        return json.dumps(asdict(cfg))

    def diff(self, old: Any, new: Any) -> Any:
        return parts.differences(old, new)

    def show(self, cfg: Any) -> str:
        return json.dumps(asdict(cfg), indent=1)
