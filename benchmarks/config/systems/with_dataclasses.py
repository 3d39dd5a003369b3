"""The floor: dataclasses, assignment, JSON, and no library; nothing is checked or loaded."""

import json
from dataclasses import asdict
from typing import Any

from parts import assign
from systems import schema


class System:
    """Dataclasses alone; also what the systems have in common whose configs are dataclasses."""

    def config(self, num_blocks: int) -> Any:
        return schema.config(num_blocks)

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        return self.assign(self.config(num_blocks), changes)

    def assign(self, cfg: Any, changes: dict[str, Any]) -> Any:
        return assign(cfg, changes)

    def build(self, cfg: Any) -> Any:
        return cfg.build()

    def save(self, cfg: Any) -> str:
        return json.dumps(asdict(cfg))

    def diff(self, old: Any, new: Any) -> Any:
        return schema.differences(old, new)

    def show(self, cfg: Any) -> str:
        return json.dumps(asdict(cfg), indent=1)
