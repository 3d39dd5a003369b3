"""Composition: directives applied in order to a config, and the changes that each one made."""

import contextlib
import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt import graph
from fidgpt.compose import directives as registry
from fidgpt.compose.catalogue import Catalogue, called, own_catalogue, require_none
from fidgpt.compose.messages import Written, directive_error, label
from fidgpt.errors import MissingEntry, at
from fidgpt.graph import ConfigError, ConfigErrors, Resolved, Source, secrets
from fidgpt.graph.edits import Edit


@dataclass(eq=False)
class Effect:
    """One directive and what it changed.

    Attributes:
      number: its position, counted from 1; 0 for the default config.
      text: the directive.
      meant: the directive with the environment variables that it names.
      find_edits: returns what it changed; called once, when first needed.
      rerun: for code, such as a fiddler: runs it again on the graph that it got, or on another one,
        which a function changes first, and returns the result; None for other directives.
      before: the graph that code got; None for other directives.
    """

    number: int
    text: str
    meant: str
    find_edits: Callable[[], list[Edit]]
    rerun: Callable[..., Any] | None = None
    before: Any = None

    @property
    def kind(self) -> registry.Directive:
        return registry.DIRECTIVES[registry.split_directive(self.text)[0]]

    @property
    def source(self) -> Source:
        """The source that its assignments were recorded with."""
        return _source(self.number, self.text, self.meant)

    @property
    def named(self) -> str:
        """The directive with its number, or the line that it stands in."""
        return f"{self.text} ({label(self.number, self.text)})"

    @cached_property
    def edits(self) -> list[Edit]:
        """Every parameter that it changed; for code, found by comparing.

        Raises:
          ConfigErrors: the graph before or after it cannot be bound.
        """
        return self.find_edits()


class Composition:
    """A config and the directives that made it.

    Attributes:
      config: the graph; None until a directive begins it.
      effects: the directives, in order, with what each of them changed.
      catalogue: the names that directives may use.
      unused: sentences about entries of files that do nothing here.
    """

    def __init__(self, catalogue: Catalogue, base: fdl.Config | None = None) -> None:
        self.config: Any = base
        self.effects: list[Effect] = []
        self.catalogue = catalogue
        self.unused: list[str] = []
        self._is_kept = base is not None  # must stay: the caller or an effect compares it

    @property
    def directives(self) -> list[str]:
        """The directives that make the config on their own; none if it was given a base."""
        begins = bool(self.effects) and self.effects[0].kind.role == "base"
        return [effect.meant for effect in self.effects if effect.number] if begins else []

    @cached_property
    def resolved(self) -> Resolved:
        """The graph resolved, once for everything that reads it.

        Raises:
          ConfigErrors: it cannot be bound.
        """
        return graph.resolve_checked(self.config)

    def why(self, path: str) -> str:
        """Return what set the value at a path, in lines.

        Raises:
          ConfigError: there is no such path.
        """
        return graph.why_text(self.resolved, path)

    def apply(self, number: int, text: str) -> None:
        """Apply one more directive.

        Raises:
          ConfigError: it is wrong, and changed nothing.
        """
        kind = registry.kind_of(text)
        if kind is None:
            raise ConfigError(_unknown(text, self.catalogue))
        meant = registry.as_code(self.config, _meant(text), self.catalogue)
        kind = registry.kind_of(meant) or kind
        secrets.require_names(meant)
        rest = registry.split_directive(meant)[1]
        if kind.role == "base":
            if self.config is not None:
                raise ConfigError(
                    f"a {kind.kind}: must come first, and only once: the graph starts from it."
                )
            self.config = kind.apply(None, rest, self.catalogue)
            self.effects.append(Effect(number, text, meant, list))
        elif kind.role == "edit":
            if self._is_kept:
                self.config, self._is_kept = graph.clone(self.config), False
            edits: Any = kind.apply(self.config, rest, self.catalogue)
            self.effects.append(Effect(number, text, meant, lambda: edits))
        else:
            self._run(number, text, meant, lambda root: kind.apply(root, rest, self.catalogue))

    def _run(self, number: int, text: str, meant: str, code: Callable[[Any], Any]) -> None:
        before = self.config
        self.config = after = code(graph.clone(before))
        self._is_kept = True

        def rerun(change: Callable[[Any], Any] = lambda _: None, *, root: Any = before) -> Any:
            changed = graph.clone(root)
            change(changed)
            with contextlib.redirect_stderr(io.StringIO()):  # printed already
                return code(changed)

        edits = functools.partial(edits_between, before, after)
        self.effects.append(Effect(number, text, meant, edits, rerun, before))


class _Wrong(NamedTuple):
    """A directive that could not be applied; `position` counts the applied ones before it."""

    number: int
    text: str
    position: int
    message: str
    error: ConfigError


_MOST_TRIED = 10  # wrong directives for which other places are tried


def compose(
    directives: Sequence[str] = (),
    catalogue: Catalogue | None = None,
    *,
    base: fdl.Config | None = None,
    first: int = 1,
    other_errors: Callable[[Composition], list[str]] = lambda _: [],
) -> Composition:
    """Return the config that directives make, applied in the order given.

    Args:
      directives: values of `--config`.
      catalogue: the names that they may use; fidgpt's own and the names of installed projects.
      base: the graph that they change, which stays as it is; None for `config:base`, unless the
        first directive begins another.
      first: the number of the first directive.
      other_errors: finds further errors in the config, when a directive is wrong and left out.

    Raises:
      ConfigErrors: some directives are wrong; each message shows the wrong piece.
    """
    composition = Composition(catalogue or own_catalogue(), base)
    numbered, errors = _with_files_expanded(directives, first, composition)
    wrong: list[_Wrong] = []
    if base is None and not (numbered and registry.is_base(numbered[0][1])):
        composition.apply(0, f"config:{registry.DEFAULT_CONFIG}")
    for number, text in numbered:
        try:
            with graph.attributed_to(_source(number, text, _meant(text))):
                composition.apply(number, text)
        except ConfigError as error:
            message = f"{error}{_remedy(composition, error, text)}"
            wrong.append(_Wrong(number, text, len(composition.effects), message, error))
            if composition.config is None:  # all that follow would fail for this reason alone
                break
    if not errors and not wrong:
        return composition
    for item, where in zip(wrong, _where_applicable(composition, base, wrong), strict=True):
        errors.append((directive_error(item.number, item.text, item.message + where), item.error))
    others = other_errors(composition) if composition.config is not None else []
    raise ConfigErrors([*(message for message, _ in errors), *others]) from errors[0][1]


def _meant(text: str) -> str:
    """A directive with the environment variables that it names."""
    is_data = registry.split_directive(text)[0] == "config_str"
    return text if is_data else registry.with_environment(text)


def _source(number: int, text: str, meant: str) -> Source:
    where = text.where if isinstance(text, Written) else ""
    return Source(text, "directive", number, where=where, meant="" if meant == text else meant)


def _with_files_expanded(
    directives: Sequence[str], first: int, composition: Composition
) -> tuple[list[tuple[int, str]], list[tuple[str, ConfigError]]]:
    """Return numbered directives, files replaced by the directives in them, and errors in files."""
    numbered: list[tuple[int, str]] = []
    errors: list[tuple[str, ConfigError]] = []
    for number, text in enumerate(directives, start=first):
        try:
            file = registry.read_file(text)
        except ConfigErrors as error:
            errors += [(str(mistake), mistake) for mistake in error.mistakes]
        except ConfigError as error:
            errors.append((directive_error(number, text, str(error)), error))
        else:
            numbered += [(number, item) for item in (file.directives if file else [text])]
            for _, axis in file.axes[:1] if file else ():
                composition.unused.append(
                    f"the sweep in {axis.where} is for sweep.py: it is left out."
                )
    return numbered, errors


def apply_fiddlers(root: fdl.Config, fiddlers: Sequence[Any]) -> fdl.Config:
    """Return a copy of a graph that fiddlers changed, in order.

    Args:
      root: the graph; it stays as it is.
      fiddlers: functions, or nodes that stand for them with their arguments, such as
        `fdl.Partial(use_gqa, num_kv_heads=2)`, from a graph of their own.

    Raises:
      ConfigError: one of them is not a fiddler, fails, or returns something.
    """
    changed = graph.clone(root)
    for number, fiddler in enumerate(fiddlers, start=1):
        function = fdl.get_callable(fiddler) if isinstance(fiddler, fdl.Buildable) else fiddler
        name = getattr(function, "__name__", repr(function))
        with graph.attributed_to(Source(name, "fiddler", number)), at(name):
            is_part = isinstance(fiddler, fdl.Partial)
            function = called(name, fdl.build, fiddler) if is_part else fiddler
            if not callable(function) or isinstance(function, fdl.Buildable):
                raise ConfigError(f"{name} is not a fiddler: give a function, or a fdl.Partial.")
            require_none(name, called(name, function, changed))
    return changed


def edits_between(before: Any, after: Any) -> list[Edit]:
    """Return the differences of two graphs as edits, one for each parameter.

    Where only tags differ, the values of an edit are alike.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    edits: dict[str, Edit] = {}
    for change in graph.diff(before, after):  # a change of tags comes after the value
        old, new = (fdl.NO_VALUE if s.is_default else s.value for s in (change.old, change.new))
        edits.setdefault(change.path, Edit(change.path, old, new))
    return list(edits.values())


def _unknown(text: str, catalogue: Catalogue) -> str:
    """Return the error message for a directive of no known kind."""
    known, kind, text = registry.DIRECTIVES, registry.split_directive(text)[0], text.strip()
    if likely := catalogue.kind_of(text.partition("(")[0]):
        text = f"{likely}:{text}"
    elif text in known:
        text = f"{text}:{known[text].syntax}"
    elif kind or "=" not in text:
        return (
            f"there is no directive {kind or text!r}. {graph.suggest(kind or text, known)}\n"
            "  Write, for example, set:model.num_layers=6 or fiddler:make_small."
        )
    else:
        text = f"set:{text}"
    return f"a directive starts with its kind and a colon: {text}"


def _remedy(composition: Composition, error: ConfigError, directive: str) -> str:
    """Return what would add the entry that a directive misses; "" if unknown."""
    kind = registry.split_directive(directive)[0]
    if composition.config is None or not isinstance(error, MissingEntry):
        return ""
    container = graph.find_parameter(composition.config, error.place).value
    if error.place.endswith("model.blocks"):
        model = graph.find_parameter(composition.config, error.place.removesuffix(".blocks")).value
        if graph.computed(getattr(model, "num_layers", None)) == len(container):
            return "\nEach layer has an entry. Set the depth before fiddler:unroll to have more."
        return (
            "\nA block stands for several layers: put fiddler:unroll before this, and each layer "
            "has an entry of its own."
        )
    if kind not in ("set", "use") or not isinstance(container, list | dict):
        return ""
    entry = "[...]" if isinstance(container, list) else "{'name': ...}"
    return f"\nTo add one, write set:{error.place}+={entry}"


def _where_applicable(
    composition: Composition, base: fdl.Config | None, wrong: Sequence[_Wrong]
) -> list[str]:
    """Return a sentence for each wrong directive: before or after which other one it applies."""
    where, tried = [""] * len(wrong), Composition(composition.catalogue, base)
    # A directive may fail the second time: a pipe, for example, cannot be read again.
    with contextlib.suppress(ConfigError), contextlib.redirect_stderr(io.StringIO()):
        for number in range(len(composition.effects) + 1):
            for i, failure in enumerate(wrong[:_MOST_TRIED] if tried.config is not None else ()):
                is_before = number < failure.position
                if number == failure.position or (where[i] and not is_before):
                    continue
                with contextlib.suppress(ConfigError):
                    Composition(composition.catalogue, tried.config).apply(0, failure.text)
                    other = composition.effects[number if is_before else number - 1]
                    word = "before" if is_before else "after"
                    where[i] = f"\nIt applies {word} {other.named}."
            if number < len(composition.effects):
                tried.apply(number, composition.effects[number].text)
    return where
