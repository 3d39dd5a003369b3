"""What can be named on the command line: the configs, fiddlers and tags that their modules list."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fiddle as fdl


@dataclass(frozen=True)
class Catalogue:
    """Names and what they stand for; nothing that is not listed can be called.

    Attributes:
      configs: functions that return a graph.
      fiddlers: functions that change one.
      tags: quantities.
    """

    configs: Mapping[str, Callable[..., fdl.Config]]
    fiddlers: Mapping[str, Callable[..., None]]
    tags: Mapping[str, type[fdl.Tag]]


def own_catalogue() -> Catalogue:
    """The catalogue of fidgpt's own configs, fiddlers and tags."""
    from fidgpt import configs, fiddlers, tags

    return Catalogue(
        configs={name: getattr(configs, name) for name in configs.__all__},
        fiddlers={name: getattr(fiddlers, name) for name in fiddlers.__all__},
        tags={name: value for name, value in vars(tags).items() if _is_tag(value)},
    )


def _is_tag(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, fdl.Tag) and value is not fdl.Tag
