"""What can be named on the command line: configs, fiddlers, tags and parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.parts import KnownParts
from fidgpt.cli.catalogue.projects import find_dotted, installed_projects
from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.storage.names import is_tag


@dataclass(frozen=True)
class Catalogue:
    """Names and what they stand for; beside them only dotted names of importable modules.

    Attributes:
      configs: functions that return a graph.
      fiddlers: functions that change one.
      tags: quantities.
      parts: constructors, and functions that parts take.
      packages: packages whose callables a file may name.
    """

    configs: Mapping[str, Callable[..., fdl.Config]]
    fiddlers: Mapping[str, Callable[..., None]]
    tags: Mapping[str, type[fdl.Tag]]
    parts: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    packages: tuple[str, ...] = ()

    def find(self, kind: str, name: str) -> Any:
        """What a name stands for, as a `config`, `fiddler` or `tag`.

        Raises:
          ConfigError: there is nothing of that name and kind; the nearest names are suggested.
        """
        known = self._lists[kind]
        if name in known:
            return known[name]
        if "." in name:
            return find_dotted(name, kind)
        other = self.kind_of(name)
        remedy = f"There is {other}:{name}." if other else suggest(name, known)
        raise ConfigError(f"there is no {kind} {name!r}. {remedy}")

    def kind_of(self, name: str) -> str | None:
        """The kind under which a name is listed; None where it is not."""
        return next((kind for kind, known in self._lists.items() if name in known), None)

    @property
    def _lists(self) -> dict[str, Mapping[str, Any]]:
        return {"config": self.configs, "fiddler": self.fiddlers, "tag": self.tags}


def own_catalogue(allowed: tuple[str, ...] = ()) -> Catalogue:
    """The catalogue of fidgpt's own configs, fiddlers, tags and parts, and of installed projects.

    Args:
      allowed: more packages whose callables a file may name.

    Raises:
      ConfigError: an installed project cannot be imported.
    """
    from fidgpt import configs, fiddlers, tags
    from fidgpt.interop.hugging_face import from_hf

    projects = installed_projects()
    return Catalogue(
        configs=_with_projects(
            _listed(configs) | {"from_hf": from_hf}, [project.configs for project in projects]
        ),
        fiddlers=_with_projects(_listed(fiddlers), [project.fiddlers for project in projects]),
        tags=_with_projects(_tags(tags), [project.tags for project in projects]),
        parts=KnownParts(tuple(project.package for project in projects), allowed),
        packages=(*(project.package for project in projects), *allowed),
    )


def _listed(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


def _tags(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if is_tag(value)}


def _with_projects(own: dict[str, Any], others: list[Mapping[str, Any]]) -> dict[str, Any]:
    """All names; of the projects' dotted ones, and bare ones that only one project has."""
    merged = dict(own)
    bare = [name.rpartition(".")[2] for names in others for name in names]
    for names in others:
        for name, value in names.items():
            merged[name] = value
            short = name.rpartition(".")[2]
            if short not in own and bare.count(short) == 1:
                merged[short] = value
    return merged
