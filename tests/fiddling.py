"""Any fiddler on any config, with what it needs."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import fiddlers

# They change a mixture of experts, and so come after the one that makes it.
OF_MIXTURES = [
    "use_expert_capacity",
    "use_expert_groups",
    "use_loss_free_balancing",
    "use_sequence_balancing",
    "use_shared_expert",
    "use_sigmoid_router",
]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "initialize_from": {"path": str(Path(__file__))},
    "mirror_checkpoints": {"url": "memory://runs/this"},
    "use_hub_text": {"path": "some/texts"},
    "use_text": {"path": str(Path(__file__))},
    "use_mixture": {"texts": {"this": str(Path(__file__))}},
    "use_validation": {"texts": {"this": str(Path(__file__))}},
}


def tiered(names: Iterable[Any], usual: Collection[Any]) -> list[Any]:
    """Parameters of a test: those in `usual` always, the others only in `make test-long`."""
    long = pytest.mark.long
    return [name if name in usual else pytest.param(name, marks=long) for name in names]


def apply(cfg: fdl.Config, name: str) -> None:
    """With the default arguments; a path is that of this file."""
    assert getattr(fiddlers, name)(cfg, **ARGUMENTS.get(name, {})) is None


def apply_to_any(cfg: fdl.Config, name: str) -> None:
    """The same, after what makes the config one that it applies to."""
    if name in OF_MIXTURES:
        fiddlers.use_moe(cfg)
    apply(cfg, name)
