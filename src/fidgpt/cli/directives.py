"""What `--config` understands: `config:`, `config_file:`, `fiddler:`, `set:` and `tag:`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.cli.calls import call_with, parse_call
from fidgpt.cli.catalogue import Catalogue
from fidgpt.graph import (
    ConfigError,
    clone,
    find_place,
    load,
    read_value,
    set_tag,
    suggest,
    tagged,
)
from fidgpt.graph.errors import at
from fidgpt.graph.hints import hint_of

DEFAULT_CONFIG = "base"
_BASES = ("config", "config_file")


def compose(directives: Sequence[str], catalogue: Catalogue) -> fdl.Config:
    """The graph that directives make, applied in the order given.

    With no `config:` or `config_file:` first, the base is `config:base`.

    Raises:
      ConfigError: a directive is wrong; the message begins with the directive.
    """
    root = None
    if not directives or split_directive(directives[0])[0] not in _BASES:
        root = catalogue.configs[DEFAULT_CONFIG]()
    for number, directive in enumerate(directives, start=1):
        try:
            root = _apply(directive, root, catalogue)
        except ConfigError as error:
            raise ConfigError(f"--config={directive} (directive {number}):\n  {error}") from error
    assert root is not None  # either the default, or the first directive made it
    return root


def split_directive(directive: str) -> tuple[str, str]:
    """The kind of a directive, "" where it has none, and the rest."""
    kind, colon, rest = directive.partition(":")
    return (kind.strip(), rest) if colon else ("", directive)


def _apply(directive: str, root: fdl.Config | None, catalogue: Catalogue) -> fdl.Config:
    """The graph after one directive; the graph before it is left as it was."""
    kind, rest = split_directive(directive)
    if kind not in _KINDS:
        raise ConfigError(_no_directive(kind, directive.strip(), catalogue))
    if kind in _BASES and root is not None:
        raise ConfigError(f"a {kind}: comes first, and only once: it is where the graph begins.")
    return _KINDS[kind](rest, clone(root), catalogue)


def _no_directive(kind: str, directive: str, catalogue: Catalogue) -> str:
    if likely := _kind_that_has(directive.partition("(")[0], catalogue):
        return f"a directive says what kind it is: {likely}:{directive}"
    if not kind and "=" in directive:
        return f"a directive says what kind it is: set:{directive}"
    return (
        f"{kind or directive!r} is no directive. {suggest(kind or directive, _KINDS)}\n"
        "  Write, for example, set:model.num_layers=6 or fiddler:make_small."
    )


def _config(text: str, _: None, catalogue: Catalogue) -> fdl.Config:
    call = parse_call(text)
    root = call_with(_named(call.name, "config", catalogue), call)
    if not isinstance(root, fdl.Config):
        raise ConfigError(
            f"{call.name} returns {type(root).__name__}, and a config is a fdl.Config."
        )
    return root


def _config_file(text: str, _: None, catalogue: Catalogue) -> fdl.Config:
    path = Path(text).expanduser()
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a ValueError for what is not UTF-8, or no path
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{path} cannot be read: {reason}.") from None
    return load(content, source=str(path))


def _fiddler(text: str, root: fdl.Config, catalogue: Catalogue) -> fdl.Config:
    call = parse_call(text)
    returned = call_with(_named(call.name, "fiddler", catalogue), call, root)
    if returned is not None:
        raise ConfigError(
            f"{call.name} returns {type(returned).__name__}, and a fiddler returns None: it "
            "changes the graph that it is given."
        )
    return root


def _set(text: str, root: fdl.Config, catalogue: Catalogue) -> fdl.Config:
    path, text = _split(text, "set:model.num_layers=6")
    place = find_place(root, path)
    with at(place.path):
        value = read_value(text, place.hint)
    place.put(value)
    return root


def _tag(text: str, root: fdl.Config, catalogue: Catalogue) -> fdl.Config:
    name, value = _split(text, "tag:LearningRate=3e-4")
    tag = _named(name, "tag", catalogue)
    carriers = tagged(root, tag)
    hint = hint_of(*carriers[0]) if carriers else Any
    set_tag(root, tag, read_value(value, hint))
    return root


def _split(text: str, example: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals or not left.strip():
        raise ConfigError(f"there is no '=' with a name before it. Write, for example, {example}.")
    return left.strip(), right


def _named(name: str, kind: str, catalogue: Catalogue) -> Any:
    known = _lists(catalogue)[kind]
    if name in known:
        return known[name]
    other = _kind_that_has(name, catalogue)
    remedy = f"There is {other}:{name}." if other else suggest(name, known)
    raise ConfigError(f"there is no {kind} {name!r}. {remedy}")


def _kind_that_has(name: str, catalogue: Catalogue) -> str | None:
    return next((kind for kind, known in _lists(catalogue).items() if name in known), None)


def _lists(catalogue: Catalogue) -> dict[str, Mapping[str, Any]]:
    return {"config": catalogue.configs, "fiddler": catalogue.fiddlers, "tag": catalogue.tags}


_KINDS: dict[str, Callable[..., fdl.Config]] = {
    "config": _config,
    "config_file": _config_file,
    "fiddler": _fiddler,
    "set": _set,
    "tag": _tag,
}
