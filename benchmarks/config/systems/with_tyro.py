"""tyro: dataclasses, a command line for every value of a default instance, YAML of its extras."""

from typing import Any

import parts
import tyro  # pyright: ignore[reportMissingImports]
from systems import with_dataclasses


class System(with_dataclasses.System):
    """What tyro does its own way."""

    def start(self, num_blocks: int, changes: dict[str, Any]) -> Any:
        return self.override(self.config(num_blocks), changes)

    def override(self, cfg: Any, changes: dict[str, Any]) -> Any:
        args = [word for path, value in changes.items() for word in _words(path, value)]
        return tyro.cli(parts.Trainer, default=cfg, args=args)

    def save(self, cfg: Any) -> str:
        return tyro.extras.to_yaml(cfg)

    def load(self, text: str) -> Any:
        return tyro.extras.from_yaml(parts.Trainer, text)

    def show(self, cfg: Any) -> str:
        return self.save(cfg)


def _words(path: str, value: Any) -> list[str]:
    flag = "--" + path.replace("[", ".").replace("]", "").replace("_", "-")
    return [flag] if value is True else [flag, str(value)]
