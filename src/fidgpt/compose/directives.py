"""Kinds of directives: the one registry, how directives are split, and what each kind does.

Importing it loads neither torch nor Fiddle, because completion and `--help` read the registry.
"""

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fidgpt.errors import ConfigError

if TYPE_CHECKING:
    import fiddle as fdl

    from fidgpt.compose.catalogue import Catalogue
    from fidgpt.compose.overrides import Overrides
    from fidgpt.graph.edits import Edit

DEFAULT_CONFIG = "base"
VARIABLE = re.compile(r"\$\{(?:oc\.)?env:\s*([^{},]*?)\s*(?:,([^{}]*))?\}")
_BY_MACHINE = "for_hardware"  # a fiddler whose changes depend on the machine


@dataclass(frozen=True)
class Directive:
    """One kind of directive, with everything that commands, completion and sweeps need to know.

    Attributes:
      kind: the word before the colon.
      syntax: what follows the colon, such as `PATH=VALUE`.
      help: what it does, in a few words.
      apply: called with the graph, the text after the colon and the catalogue. An "edit" changes
        the graph and returns its edits; a "base" gets None and returns a graph; "code", which may
        fail halfway, gets a copy and returns the changed graph, with which it is compared. A "file"
        gets None and returns the directives that stand in it, which are applied in its place.
      completes: what completes the text, or the part to the left of its `=`: "config", "fiddler",
        "file", "path", "value=" (the path of a value), "tag=" or "path=".
      sweep: what the values of an axis in a sweep are: "names", or "numbers" too, such as
        `log(1e-4,1e-2,9)`; None if it has no axes. They stand behind the `=`, if it has one.
      role: "base" for where a graph begins, "edit", "code" or "file".
      signed: whether `=` may be `*=`, `+=` or `-=`, which change a value and do not override it.
      relative: whether it always changes the value that is there, and so never overrides it.
      restates: whether it may set a value that is set already; others may not change nothing.
      portable: whether it means the same on another machine, as the name of a file does not.
    """

    kind: str
    syntax: str
    help: str
    apply: "Callable[[Any, str, Catalogue], fdl.Config | list[Edit] | Overrides]"
    completes: str = ""
    sweep: Literal["names", "numbers"] | None = "names"
    role: Literal["base", "edit", "code", "file"] = "edit"
    signed: bool = False
    relative: bool = False
    restates: bool = False
    portable: bool = True

    def is_relative(self, text: str) -> bool:
        """Return whether a text after the colon changes the value that is there, as `*=` does."""
        return self.relative or (self.signed and bool(split_assignment(text)[1]))


def split_directive(directive: str) -> tuple[str, str]:
    """Return the kind of a directive, "" if it has none, and the rest."""
    kind, colon, rest = directive.partition(":")
    return (kind.strip(), rest) if colon else ("", directive)


def kind_of(directive: str) -> Directive | None:
    """Return the kind of a directive; None if it has none that is registered."""
    return DIRECTIVES.get(split_directive(directive)[0])


def is_base(directive: str) -> bool:
    """Return whether a graph begins with a directive."""
    kind = kind_of(directive)
    return kind is not None and kind.role == "base"


def read_file(directive: str) -> "Overrides | None":
    """Return what stands in the file that a directive names; None if its kind names none.

    Raises:
      ConfigErrors: the file cannot be read, or is wrong; each message shows the line.
    """
    kind, rest = split_directive(directive)
    if kind not in DIRECTIVES or DIRECTIVES[kind].role != "file":
        return None
    directives: Any = DIRECTIVES[kind].apply(None, rest, None)  # type: ignore[arg-type]
    return directives


def with_environment(text: str) -> str:
    """Return a text with the environment variables that it names, as `${env:NAME,default}`.

    Raises:
      ConfigError: a variable is not set, and there is no default.
    """

    def value_of(match: re.Match[str]) -> str:
        value = os.environ.get(match[1], match[2])
        if value is None:
            raise ConfigError(
                f"the environment variable {match[1]} of {match[0]} is not set: "
                f"export {match[1]}=..., or give a default: ${{env:{match[1]},...}}"
            )
        return value

    return VARIABLE.sub(value_of, text)


def assigns(kind: str) -> bool:
    """Return whether directives of a kind have the form `LEFT=RIGHT`."""
    return kind in DIRECTIVES and "=" in DIRECTIVES[kind].syntax


def takes_numbers(kind: str) -> bool:
    """Return whether the values of a kind may be ranges of numbers in a sweep."""
    return kind in DIRECTIVES and DIRECTIVES[kind].sweep == "numbers"


def is_by_machine(directive: str) -> bool:
    """Return whether a directive is the fiddler that adapts a config to the machine at hand."""
    kind, rest = split_directive(directive)
    return kind == "fiddler" and rest.partition("(")[0].strip().split(".")[-1] == _BY_MACHINE


_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ASSIGNMENT = re.compile(rf"((?:[^='\"]|{_QUOTED})*?)([*+-]?)=(.*)", re.DOTALL)


def split_assignment(
    text: str, example: str = "set:model.num_layers=6", *, signed: bool = True
) -> tuple[str, str, str]:
    """Return the text to the left of `=`, the sign before it, and the text to the right of it.

    Args:
      text: the text after the colon.
      example: a correct directive, for error messages.
      signed: whether there may be a sign.

    Raises:
      ConfigError: there is no `=` with a name before it, or a wrong sign.
    """
    match = _ASSIGNMENT.fullmatch(text)
    left = match[1].strip() if match else ""
    if match and left and (signed or not match[2]):
        return left, match[2], match[3]
    if not match or not left:
        raise ConfigError(f"there is no '=' with a name before it. Write, for example, {example}.")
    raise ConfigError(
        f"{match[2]}= is for {SIGNED}, for numbers and lists. Write, for example, {example}."
    )


def _config(_root: Any, text: str, catalogue: "Catalogue") -> "fdl.Config":
    from fidgpt.compose.catalogue import config_named

    return config_named(text, catalogue)


def _config_file(_root: Any, text: str, catalogue: "Catalogue") -> "fdl.Config":
    from fidgpt.compose.sources import load_file

    of_run = os.path.join(text, "config.json")  # a URL stays one
    is_run = os.path.isfile(os.path.expanduser(of_run))
    return load_file(of_run if is_run else text, allowed=catalogue.packages)


def _config_str(_root: Any, text: str, catalogue: "Catalogue") -> "fdl.Config":
    from fidgpt.compose.sources import load_and_warn

    return load_and_warn(text, source="the text", allowed=catalogue.packages)


def _fiddler(root: Any, text: str, catalogue: "Catalogue") -> "fdl.Config":
    from fidgpt.compose.catalogue import call_fiddler

    call_fiddler(text, root, catalogue)
    return root


def _patch(root: Any, text: str, catalogue: "Catalogue") -> "fdl.Config":
    from fidgpt.compose.sources import read_text
    from fidgpt.graph.difference.patches import apply_patch

    path, content = read_text(text)
    return apply_patch(root, content, source=path, allowed=catalogue.packages)


def _yaml(_root: Any, text: str, _catalogue: "Catalogue") -> "Overrides":
    from fidgpt.compose.overrides import read_overrides

    return read_overrides(text, DIRECTIVES)


def _set(root: Any, text: str, catalogue: "Catalogue") -> "list[Edit]":
    selector, sign, value = split_assignment(text)
    return _assign(root, selector, sign, value, catalogue)


def _tag(root: Any, text: str, catalogue: "Catalogue") -> "list[Edit]":
    from fidgpt.graph.selectors import tags_of

    name, sign, value = split_assignment(text, "tag:LearningRate=3e-4")
    return _assign(root, tag_named(tags_of(root), name, catalogue), sign, value, catalogue)


def as_code(root: Any, directive: str, catalogue: "Catalogue") -> str:
    """Return the fiddler that a `tag:` directive stands for where none carries the tag, else it."""
    kind, text = split_directive(directive)
    if kind != "tag":
        return directive
    from fidgpt.graph.selectors import tags_of

    name, sign, value = split_assignment(text, "tag:LearningRate=3e-4")
    tags = tags_of(root)
    tag = tag_named(tags, name, catalogue)
    is_made = hasattr(tag, "FIDDLER") and not sign and tag not in tags
    return f"fiddler:{tag.FIDDLER.format(value)}" if is_made else directive


def tag_named(tags: Collection[Any], name: str, catalogue: "Catalogue") -> Any:
    """Return the tag that a name means for a graph whose parameters carry some.

    Raises:
      ConfigError: there is none, or several.
    """
    carried = [tag for tag in tags if tag.__name__ == name]
    return carried[0] if len(carried) == 1 else catalogue.find("tag", name)


def _assign(
    root: Any, selector: Any, sign: str, value: str, catalogue: "Catalogue"
) -> "list[Edit]":
    from fidgpt.graph import edits

    if sign:
        return edits.change_by(root, selector, sign, value, parts=catalogue.parts)
    return edits.set_text(root, selector, value, parts=catalogue.parts)


def _delete(root: Any, text: str, _catalogue: "Catalogue") -> "list[Edit]":
    from fidgpt.graph import edits

    return edits.delete(root, text.strip())


def _use(root: Any, text: str, catalogue: "Catalogue") -> "list[Edit]":
    from fidgpt.graph import edits

    example = "use:schedule=WarmupStableDecay(decay_steps=50)"
    selector, _, call = split_assignment(text, example, signed=False)
    return edits.use(root, selector, call, parts=catalogue.parts)


def _tie(root: Any, text: str, _catalogue: "Catalogue") -> "list[Edit]":
    from fidgpt.graph import edits

    example = "tie:model.unembedding=model.embedding"
    selector, _, source = split_assignment(text, example, signed=False)
    return edits.tie(root, selector, source.strip())


def _untie(root: Any, text: str, _catalogue: "Catalogue") -> "list[Edit]":
    from fidgpt.graph import edits

    return edits.untie(root, text.strip())


_base = partial(Directive, role="base")
_code = partial(Directive, role="code")
_file = partial(Directive, role="file", sweep=None, portable=False)
_number = partial(Directive, sweep="numbers", signed=True, restates=True)
_ALL = (
    _base("config", "NAME(args)", "start from a named config", _config, "config"),
    _base("config_file", "PATH", "start from a file", _config_file, "file", portable=False),
    _base("config_str", "TEXT", "start from a config given as text", _config_str, portable=False),
    _code("fiddler", "NAME(args)", "change the config with a named function", _fiddler, "fiddler"),
    _number("set", "PATH=VALUE", "set one value", _set, "value="),
    _number("tag", "NAME=VALUE", "set a quantity for all that inherit it", _tag, "tag="),
    Directive("del", "PATH", "go back to the default", _delete, "path", restates=True),
    Directive("use", "PATH=PART(args)", "replace a component", _use, "path="),
    Directive("tie", "PATH=PATH", "make two parameters share one component", _tie, "path="),
    Directive("untie", "PATH", "give a parameter its own copy", _untie, "path"),
    _code("patch", "FILE", "apply a saved difference", _patch, "file", portable=False),
    _file("yaml", "FILE", "apply what a YAML file sets", _yaml, "file"),
)
DIRECTIVES = {directive.kind: directive for directive in _ALL}
SIGNED = " and ".join(f"{kind.kind}:" for kind in _ALL if kind.signed)
