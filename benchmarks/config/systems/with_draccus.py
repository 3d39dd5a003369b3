"""draccus: dataclasses and YAML; changes go into the tree that it decodes.

Its command line cannot address an item of a list, so that what is measured as overriding is what
its parser does after it has read the words: the tree of the file, changed, is decoded and checked.
"""

from typing import Any

import draccus  # pyright: ignore[reportMissingImports]
import parts
from draccus import cfgparsing  # pyright: ignore[reportMissingImports]
from systems import with_dataclasses


class System(with_dataclasses.System):
    """What draccus does its own way."""

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        return self.override(self.config(num_blocks), changes)

    def override(self, cfg: Any, changes: dict[str, Any]) -> Any:
        tree = draccus.encode(cfg)
        for path, value in changes.items():
            above, _, name = path.rpartition(".")
            parts.value_at(tree, above)[name] = cfgparsing.parse_string(str(value))
        return draccus.decode(parts.Trainer, tree)

    def save(self, cfg: Any) -> str:
        return draccus.dump(cfg)

    def load(self, text: str) -> Any:
        return draccus.load(parts.Trainer, text)

    def show(self, cfg: Any) -> str:
        return self.save(cfg)
