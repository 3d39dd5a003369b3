"""GPT-2's sizes, for any model."""

import fiddle as fdl

from fidgpt.train import Trainer


def make_small(cfg: fdl.Config[Trainer]) -> None:
    """Set width and depth of GPT-2 small: 12 layers of 768."""
    _make(cfg, hidden_dim=768, num_layers=12)


def make_medium(cfg: fdl.Config[Trainer]) -> None:
    """Set width and depth of GPT-2 medium: 24 layers of 1,024."""
    _make(cfg, hidden_dim=1024, num_layers=24)


def make_large(cfg: fdl.Config[Trainer]) -> None:
    """Set width and depth of GPT-2 large: 36 layers of 1,280."""
    _make(cfg, hidden_dim=1280, num_layers=36)


def make_xl(cfg: fdl.Config[Trainer]) -> None:
    """Set width and depth of GPT-2 XL: 48 layers of 1,600."""
    _make(cfg, hidden_dim=1600, num_layers=48)


def _make(cfg: fdl.Config[Trainer], *, hidden_dim: int, num_layers: int) -> None:
    cfg.model.hidden_dim = hidden_dim
    cfg.model.num_layers = num_layers
