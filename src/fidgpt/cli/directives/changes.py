"""Directives that change a graph: `set:`, `tag:`, `del:`, `use:`, `tie:`, `untie:`, `patch:`."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.calls import call_with, guarded
from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.running.reading import read_text
from fidgpt.graph import ConfigError, edits
from fidgpt.graph.edits import Edit
from fidgpt.graph.typed.calls import parse_call

_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ASSIGNMENT = re.compile(rf"((?:[^='\"]|{_QUOTED})*?)\s*([*+-]?)=(.*)", re.DOTALL)
_AMOUNT = re.compile(r"\s*([*+/-])=?\s*([\w.({][^*/+-]*)")
_OTHER_SIGN = re.compile(r"(?<=[\w\]])\s*([/*%^]+)$")
Change = Callable[[str, fdl.Config, Catalogue], list[Edit]]


def change_set(text: str, root: fdl.Config, catalogue: Catalogue) -> list[Edit]:
    """Sets values: `set:model.num_layers=6`, `set:**.dropout=0.1`, `set:seq_len*=2`.

    To a list, tuple or dict, `+=` adds items: `set:trackers+=[JSONLines]`.

    Raises:
      ConfigError: the text is wrong, or nothing can be set so.
    """
    selector, sign, value = assignment(text, "set:model.num_layers=6")
    if sign:
        return edits.change_by(root, selector, sign, value, parts=catalogue.parts)
    with _sign_before(f"set:{selector}", value):
        return edits.set_text(root, selector, value, parts=catalogue.parts)


def change_tag(text: str, root: fdl.Config, catalogue: Catalogue) -> list[Edit]:
    """Says a quantity anew: `tag:LearningRate=3e-4`, `tag:LearningRate*=0.5`.

    Raises:
      ConfigError: the text is wrong, or nothing can be said so.
    """
    name, sign, value = assignment(text, "tag:LearningRate=3e-4")
    tag = catalogue.find("tag", name)
    if sign:
        return edits.change_tag_by(root, tag, sign, value, parts=catalogue.parts)
    with _sign_before(f"tag:{name}", value):
        return edits.tag_text(root, tag, value, parts=catalogue.parts)


def change_del(text: str, root: fdl.Config, _: Catalogue) -> list[Edit]:
    """Goes back to defaults: `del:optimizer.betas`.

    Raises:
      ConfigError: the text names nothing, or what has no default.
    """
    return edits.delete(root, text.strip())


def change_use(text: str, root: fdl.Config, catalogue: Catalogue) -> list[Edit]:
    """Puts a part in the place of another: `use::RMSNorm=LayerNorm(eps=1e-6)`.

    Raises:
      ConfigError: the text is wrong, or the part does not fit.
    """
    selector, call = _plain_assignment(text, "use:schedule=WarmupStableDecay(decay_steps=50)")
    return edits.use(root, selector, call, parts=catalogue.parts)


def change_tie(text: str, root: fdl.Config, _: Catalogue) -> list[Edit]:
    """Makes a place hold what another holds: `tie:unembedding.weight=embedding.weight`.

    Raises:
      ConfigError: the text is wrong, or what is there cannot be shared so.
    """
    selector, source = _plain_assignment(text, "tie:model.unembedding=model.embedding")
    return edits.tie(root, selector, source.strip())


def change_untie(text: str, root: fdl.Config, _: Catalogue) -> list[Edit]:
    """Gives a place a part of its own: `untie:model.unembedding.weight`.

    Raises:
      ConfigError: the text names nothing that is shared.
    """
    return edits.untie(root, text.strip())


def run_fiddler(text: str, root: fdl.Config, catalogue: Catalogue) -> fdl.Config:
    """Lets a fiddler change a graph: `fiddler:use_gqa(num_kv_heads=2)`; returns that graph.

    Raises:
      ConfigError: there is no such fiddler, it fails, or it returns something.
    """
    call = parse_call(text)
    _require_none(call.name, call_with(catalogue.find("fiddler", call.name), call, root))
    return root


def run(fiddler: Any, root: fdl.Config) -> None:
    """Lets a fiddler change a graph: a function, or a part that stands for one with arguments.

    Raises:
      ConfigError: it is none, fails, or returns something.
    """
    name = name_of(fiddler)
    is_part = isinstance(fiddler, fdl.Partial)
    function = guarded(name, fdl.build, fiddler) if is_part else fiddler
    if not callable(function) or isinstance(function, fdl.Buildable):
        raise ConfigError(f"{name} is no fiddler: give a function, or a fdl.Partial of one.")
    _require_none(name, guarded(name, function, root))


def name_of(fiddler: Any) -> str:
    """What a fiddler is called."""
    called = fdl.get_callable(fiddler) if isinstance(fiddler, fdl.Buildable) else fiddler
    return getattr(called, "__name__", repr(called))


def apply_patch(text: str, root: fdl.Config, catalogue: Catalogue) -> fdl.Config:
    """Applies a saved difference: `patch:wide.patch`; returns the changed graph.

    Raises:
      ConfigError: the file cannot be read, or does not apply.
    """
    path, content = read_text(text)
    from fidgpt.graph.difference import apply  # late: most runs apply none

    return apply.apply_patch(root, content, source=path, allowed=catalogue.packages)


def _require_none(name: str, returned: Any) -> None:
    if returned is not None:
        raise ConfigError(
            f"{name} returns {type(returned).__name__}, and a fiddler returns None: it "
            "changes the graph that it is given."
        )


def _plain_assignment(text: str, example: str) -> tuple[str, str]:
    left, sign, right = assignment(text, example)
    if sign:
        raise ConfigError(
            f"{sign}= is for set: and tag:, for numbers and lists. Write, for example, {example}."
        )
    return left, right


@contextlib.contextmanager
def _sign_before(what: str, value: str) -> Iterator[None]:
    """Where a value is refused that begins with a sign, tells where the sign belongs."""
    try:
        yield
    except ConfigError as error:
        match = _AMOUNT.fullmatch(value)
        if match is None:
            raise
        how = f"*=1/{match[2]}" if match[1] == "/" else f"{match[1]}={match[2]}"
        raise ConfigError(f"{error} To change what is there, write {what}{how}.") from error


def assignment(text: str, example: str) -> tuple[str, str, str]:
    """What is left of `=`, the sign before it, and what is right of it.

    Raises:
      ConfigError: there is no `=` with a name before it.
    """
    match = _ASSIGNMENT.fullmatch(text)
    if match is None or not match[1].strip():
        raise ConfigError(f"there is no '=' with a name before it. Write, for example, {example}.")
    left = match[1].strip()
    if other := _OTHER_SIGN.search(left):
        raise ConfigError(
            f"there is no {other[1]}{match[2]}=: a number is changed by *=, += and -=, so that "
            f"{left[: other.start()].rstrip()}*=1/2 halves it."
        )
    return left, match[2], match[3]
