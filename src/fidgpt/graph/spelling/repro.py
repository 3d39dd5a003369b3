"""The fewest directives that make a graph again from the nearest graph that has a name."""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fidgpt.graph.binding.bind import resolve
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.spelling.attempts import Attempts, Compose
from fidgpt.graph.spelling.nearness import Frame, frame_of, least_apart
from fidgpt.graph.spelling.search import Search
from fidgpt.graph.structure.walk import parts

if TYPE_CHECKING:
    from fidgpt.graph.difference.changes import Change

_LARGE = 2000  # parts, past which trying every fiddler would take too long
_NOTHING: Mapping[str, Frame] = {}


@dataclass(frozen=True, slots=True)
class Repro:
    """How to make a graph again.

    Attributes:
      directives: in order; the first one names the graph to begin with.
      left: the differences that no directive can make; with none, the graph is the very same.
      is_same: whether the fingerprints agree.
    """

    directives: list[str]
    left: "list[Change]"
    is_same: bool


def repro(
    root: Any,
    bases: Mapping[str, Any],
    *,
    compose: Compose,
    frames: Mapping[str, Frame] = _NOTHING,
    fiddlers: Iterable[str] = (),
    known: Sequence[str] = (),
    part_name: Callable[[Any], str] = attrgetter("__qualname__"),
) -> Repro:
    """The directives that make `root` from the base that is nearest to it, found by trying.

    Args:
      root: the graph.
      bases: graphs to begin with, by the directive that makes each.
      compose: makes the graph of some directives.
      frames: what is known of bases, as `nearest` takes it.
      fiddlers: directives to try for what they save, such as `fiddler:use_gelu`.
      known: directives that may have made it, of which some may not be needed.
      part_name: how a directive calls a constructor.

    Returns:
      As few directives as were found, each of them needed, checked by making the graph.

    Raises:
      ConfigError: a graph cannot be bound, or holds what has no name.
    """
    attempts = Attempts(root, compose)
    tried = fiddlers if len(parts(root)) <= _LARGE else ()
    search = Search(attempts, tried, part_name)
    found: list[list[str]] = []
    if known and attempts.is_same(list(known)):
        found.append(search.without_needless(list(known)))
    first = nearest(root, bases, frames)
    if not found or found[0][0] != first or len(found[0]) > 2:  # fewer there are not
        found = search.ways([first]) + found
    said = min(found, key=search.price)
    return Repro(said, attempts.left(said) or [], attempts.is_same(said))


def nearest(root: Any, bases: Mapping[str, Any], frames: Mapping[str, Frame] = _NOTHING) -> str:
    """The name of the graph that differs least from `root`; of several, the first.

    A graph that cannot be made or bound is passed over.

    Args:
      root: the graph.
      bases: graphs by name, which may be made when they are asked for.
      frames: frames of some of them, so that those far away need not be made.

    Raises:
      ConfigError: there is no graph to choose, or `root` cannot be bound.
    """
    from fidgpt.graph.difference.diff import Target  # late: differences are loaded only for this
    from fidgpt.graph.spelling.sayable import distance

    resolve(root)
    frame, target = frame_of(root), Target(root)
    least: dict[str, int] = {}
    for name in bases:
        with contextlib.suppress(ConfigError):
            known = frames[name] if name in frames else frame_of(bases[name])
            least[name] = least_apart(known, frame)
    distances: dict[str, int] = {}
    for name in sorted(least, key=lambda one: least[one]):
        if least[name] > min(distances.values(), default=math.inf):
            break  # this one is farther away, and so are all that follow
        with contextlib.suppress(ConfigError):
            distances[name] = distance(target.since(bases[name]))
    if not distances:
        raise ConfigError("there is no config to begin with.")
    return min((name for name in bases if name in distances), key=lambda name: distances[name])
