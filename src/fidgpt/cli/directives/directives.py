"""What `--config` understands, one directive after the other.

config:NAME(args)   config_file:PATH   config_str:TEXT    where the graph begins
fiddler:NAME(args)  patch:FILE                            what changes it as a whole
set:PATH=VALUE      set:PATH*=2        del:PATH           its values
tag:NAME=VALUE      tag:NAME*=2                           its quantities
use:PATH=NAME(args) tie:PATH=PATH      untie:PATH         its parts
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.directives import bases, changes
from fidgpt.cli.directives.blame import blamed
from fidgpt.cli.directives.effects import Composed, Effect, edits_between, speaker
from fidgpt.cli.directives.spelling import DEFAULT_CONFIG, KINDS, is_base, split_directive
from fidgpt.graph import ConfigError, ConfigErrors, Speaker, clone, suggest
from fidgpt.graph.edits import Edit
from fidgpt.graph.errors import MissingEntry
from fidgpt.graph.history.provenance import said_by

_BASES: dict[str, Callable[[str, Catalogue], fdl.Config]] = {
    "config": bases.from_function,
    "config_file": bases.from_file,
    "config_str": bases.from_text,
}
# Code of somebody's own may fail half-way: it works on a copy.
_CODE: dict[str, Callable[[str, fdl.Config, Catalogue], fdl.Config]] = {
    "fiddler": changes.run_fiddler,
    "patch": changes.apply_patch,
}
_CHANGES: dict[str, changes.Change] = {
    "set": changes.change_set,
    "tag": changes.change_tag,
    "del": changes.change_del,
    "use": changes.change_use,
    "tie": changes.change_tie,
    "untie": changes.change_untie,
}


def compose(
    directives: Sequence[str], catalogue: Catalogue, *, base: fdl.Config | None = None
) -> fdl.Config:
    """The graph that directives make, applied in the order given.

    Args:
      directives: what `--config` said.
      catalogue: what has a name.
      base: where the directives begin; `config:base`, unless the first of them says otherwise.

    Raises:
      ConfigErrors: some directives are wrong; each message shows which piece.
    """
    return composed(directives, catalogue, base=base).root


def composed(
    directives: Sequence[str],
    catalogue: Catalogue,
    *,
    base: fdl.Config | None = None,
    first: int = 1,
    more: Callable[[Composed], list[str]] | None = None,
) -> Composed:
    """The same graph, with what each directive changed.

    Args:
      directives: what `--config` said.
      catalogue: what has a name.
      base: where the directives begin, as for `compose`.
      first: the first one's number.
      more: what is wrong with what the other directives made, told too where one is wrong.

    Raises:
      ConfigErrors: as `compose` does.
    """
    graph = _Graph(catalogue, base)
    if base is None and not (directives and is_base(directives[0])):
        graph.begin(0, f"config:{DEFAULT_CONFIG}")
    mistakes: list[tuple[str, ConfigError]] = []
    for number, directive in enumerate(directives, start=first):
        try:
            with said_by(speaker(number, directive)):
                graph.apply(number, directive)
        except ConfigError as error:
            mistakes.append((blamed(number, directive, graph.told(error, directive)), error))
            if not graph.has_begun:  # all that follows would fail for this reason alone
                break
    if mistakes:
        others = more(Composed(graph.root, graph.effects)) if more and graph.has_begun else []
        raise ConfigErrors([*(message for message, _ in mistakes), *others]) from mistakes[0][1]
    return Composed(graph.root, graph.effects)


def apply_fiddlers(root: fdl.Config, fiddlers: Sequence[Any]) -> fdl.Config:
    """A copy of a graph that fiddlers changed, in order.

    Args:
      root: the graph; it stays as it is.
      fiddlers: functions, or parts that stand for them with their arguments, such as
        `fdl.Partial(use_gqa, num_kv_heads=2)`, from a graph of their own.

    Raises:
      ConfigError: one of them is no fiddler, fails, or returns something.
    """
    changed = clone(root)
    for number, fiddler in enumerate(fiddlers, start=1):
        with said_by(Speaker(changes.name_of(fiddler), "fiddler", number)):
            changes.run(fiddler, changed)
    return changed


class _Graph:
    """The graph so far, and what came of each directive."""

    def __init__(self, catalogue: Catalogue, base: fdl.Config | None) -> None:
        self._catalogue = catalogue
        self._root = base
        # Whether somebody else needs the graph as it is now: the caller, or an effect to compare.
        self._is_kept = base is not None
        self.effects: list[Effect] = []

    @property
    def has_begun(self) -> bool:
        return self._root is not None

    @property
    def root(self) -> fdl.Config:
        assert self._root is not None  # the first directive begins it, or the default does
        return self._root

    def told(self, error: ConfigError, directive: str) -> str:
        """What a user reads of a mistake in a directive, with what this graph has to do with it."""
        if not (self.has_begun and isinstance(error, MissingEntry)):
            return str(error)
        from fidgpt.cli.directives import lacking, layers  # late, as they know the model

        added = functools.partial(lacking.remedy, self.root, error.place, directive)
        return f"{error}{layers.remedy(self.root, error.place) or added(self._catalogue)}"

    def apply(self, number: int, directive: str) -> None:
        kind, rest = split_directive(directive)
        if any("\ud800" <= letter <= "\udfff" for letter in directive):
            raise ConfigError("it is not UTF-8 text: whoever wrote it used another encoding.")
        if kind in _BASES:
            self.begin(number, directive)
        elif kind in _CODE:
            self._run(number, directive, functools.partial(_CODE[kind], rest))
        elif kind in _CHANGES:
            self._change(number, directive, functools.partial(_CHANGES[kind], rest))
        else:
            raise ConfigError(_no_directive(kind, directive.strip(), self._catalogue))

    def begin(self, number: int, directive: str) -> None:
        kind, rest = split_directive(directive)
        if self._root is not None:
            raise ConfigError(
                f"a {kind}: comes first, and only once: it is where the graph begins."
            )
        self._root = _BASES[kind](rest, self._catalogue)
        self._note(number, directive, list)

    def _run(self, number: int, directive: str, code: Callable[..., fdl.Config]) -> None:
        before = self.root
        self._root = after = code(clone(before), self._catalogue)
        self._is_kept = True

        def rerun(change: Callable[[Any], Any]) -> fdl.Config:
            changed = clone(before)
            change(changed)
            return code(changed, self._catalogue)

        edits = functools.partial(edits_between, before, after)
        self.effects.append(Effect(number, directive, edits, rerun))

    def _change(self, number: int, directive: str, change: Callable[..., list[Edit]]) -> None:
        if self._is_kept:
            self._root, self._is_kept = clone(self.root), False
        made = change(self.root, self._catalogue)
        self._note(number, directive, lambda: made)

    def _note(self, number: int, directive: str, edits: Callable[[], list[Edit]]) -> None:
        self.effects.append(Effect(number, directive, edits))


def _no_directive(kind: str, directive: str, catalogue: Catalogue) -> str:
    if likely := catalogue.kind_of(directive.partition("(")[0]):
        return f"a directive says what kind it is: {likely}:{directive}"
    if directive in KINDS:
        return f"{directive!r} needs a colon, and what it is about: {directive}:..."
    if kind.lower() in KINDS:
        return f"{kind!r} is no directive: write {kind.lower()}: in small letters."
    if not kind and "=" in directive:
        return f"a directive says what kind it is: set:{directive}"
    return (
        f"{kind or directive!r} is no directive. {suggest(kind or directive, KINDS)}\n"
        "  Write, for example, set:model.num_layers=6 or fiddler:make_small."
    )
