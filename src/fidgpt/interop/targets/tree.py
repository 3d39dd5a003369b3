"""What a tree of `_target_` calls says, before any of the names in it is looked up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.walk import join
from fidgpt.graph.yaml import Foreign
from fidgpt.interop.targets.references import References

_NAMES = ("_target_", "_component_")
_SETTINGS = ("_args_", "_partial_", "_convert_", "_recursive_")
_CONVERSIONS = ("none", "partial", "object", "all")
_LOOKUPS = tuple(f"hydra.utils.get_{kind}" for kind in ("class", "method", "object"))
MOST_ITEMS = 1_000_000  # of lists and dicts, each counted as often as a part holds it
DEEPEST = 50  # lists and dicts inside each other, without a part between


@dataclass(slots=True)
class Call:
    """A mapping that names what to call.

    Attributes:
      written: the mapping.
      path: where it stands first.
      name: what it calls, or looks up.
      is_partial: whether the call is made later.
      is_lookup: whether the value is what the name stands for, not a call of it.
      arguments: each by name or number, references followed.
    """

    written: dict[Any, Any]
    path: str
    name: str
    is_partial: bool = False
    is_lookup: bool = False
    arguments: list[tuple[str | int, Any]] = field(default_factory=list)

    @property
    def place(self) -> str:
        """The path in a message."""
        return self.path or "the top"


@dataclass(slots=True)
class Tree:
    """The calls, lists and dicts that can be reached from the top, references followed.

    Attributes:
      root: the top.
      calls: each once, those further out first.
      containers: the plain lists and dicts, each once: as it is written, and what it holds.
      mistakes: a message for each thing that is wrong.
    """

    root: Any
    calls: list[Call] = field(default_factory=list)
    containers: list[tuple[Any, Any]] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


def read_tree(root: Any) -> Tree:
    """The calls of a tree of plain data; references are replaced by what they name.

    Raises:
      ConfigError: the tree is no mapping or list, or its lists and dicts repeat each other without
        end.
    """
    if not isinstance(root, dict | list):
        raise ConfigError(f"the file holds {root!r:.60}, and no mapping with a _target_.")
    if isinstance(root, dict) and "defaults" in root and not _is_call(root):
        raise ConfigError(
            "defaults: names other files of a Hydra config, which are not read here. Write the "
            "whole config into one file first: python app.py --cfg job."
        )
    tree = Tree(root)
    references = References(root)
    found = {id(root)}
    todo: list[tuple[str, Any]] = [("", root)]
    while todo:
        path, container = todo.pop()
        below = _read(tree, path, container, references)
        new = [(at, one) for at, one in below if _is_new(one, found)]
        todo += reversed(new)
    _refuse_repetition(tree)
    return tree


def _is_new(value: Any, found: set[int]) -> bool:
    if not isinstance(value, dict | list) or id(value) in found:
        return False
    found.add(id(value))
    return True


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and any(name in value for name in _NAMES)


def _read(
    tree: Tree, path: str, container: Any, references: References
) -> Iterable[tuple[str, Any]]:
    """Notes a container in the tree; returns what it holds, each with its path."""
    resolved = _resolved(tree, path, container, references)
    if not _is_call(container):
        tree.containers.append((container, resolved))
        return _entries(path, resolved)
    args = resolved.get("_args_")
    if isinstance(args, list):
        resolved["_args_"] = _resolved(tree, join(path, "._args_"), args, references)
    call = _call(tree, path, container, resolved)
    if call is None:
        return ()
    tree.calls.append(call)
    return _entries(path, dict(call.arguments))


def _resolved(tree: Tree, path: str, container: Any, references: References) -> Any:
    """A list or dict with what its references name; what is wrong is noted and left out."""
    resolved = container.copy()
    wrong: list[Any] = []
    for key, written in enumerate(container) if _is_list(container) else container.items():
        try:
            resolved[key] = _plain(references.value(container, written))
        except ConfigError as error:
            tree.mistakes.append(f"{join(path, _step(key))}: {error}")
            wrong.append(key)
    for key in reversed(wrong):
        del resolved[key]
    return resolved


def _entries(path: str, container: Any) -> Iterator[tuple[str, Any]]:
    pairs = enumerate(container) if _is_list(container) else container.items()
    return ((join(path, _step(key)), value) for key, value in pairs)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _step(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _plain(value: Any) -> Any:
    if isinstance(value, Foreign):
        raise ConfigError(f"the tag {value.tag!r:.40} is refused: a config is plain data.")
    if value == "???":
        raise ConfigError("??? says that a value is missing: write it.")
    return value


def _call(tree: Tree, path: str, written: Any, said: dict[Any, Any]) -> Call | None:
    """The call of a mapping that was `written`, in which references are replaced by what is `said`.

    None where it does not say what is called. Whatever is wrong is noted.
    """
    tree.mistakes += [f"{path or 'the top'}: {message}" for message in _mistakes(said)]
    name = said.get("_target_", said.get("_component_"))
    if not isinstance(name, str):
        return None
    if name in _LOOKUPS:
        found = said.get("path")
        return Call(written, path, found, is_lookup=True) if isinstance(found, str) else None
    call = Call(written, path, name, is_partial=said.get("_partial_") is True)
    args = said.get("_args_")
    call.arguments += enumerate(args if isinstance(args, list) else ())
    named = ((key, value) for key, value in said.items() if isinstance(key, str))
    call.arguments += [(key, value) for key, value in named if not is_reserved(key)]
    return call


def is_reserved(key: str) -> bool:
    """Whether a key is no argument, but says something of the call itself."""
    return len(key) > 2 and key.startswith("_") and key.endswith("_")


def _mistakes(written: dict[Any, Any]) -> Iterator[str]:
    """What is wrong with the words of one call."""
    names = [name for name in _NAMES if name in written]
    if len(names) > 1:
        yield "it says both _target_ and _component_: keep one of them."
    for key in names:
        name = written[key]
        if not isinstance(name, str):
            yield f"{key} is {name!r:.60}, and a dotted name is asked, such as torch.nn.Linear."
        elif name in _LOOKUPS and ({*written} != {key, "path"} or not _is_text(written["path"])):
            yield f"{name} takes the dotted name of what it gives as path, and nothing else."
    for key in written:
        if not isinstance(key, str):
            yield f"an argument has a name, and {key!r:.60} is none."
        elif is_reserved(key) and key not in (*_NAMES, *_SETTINGS):
            yield f"{key:.60} means nothing. {suggest(key, (*_NAMES, *_SETTINGS))}"
    if not isinstance(written.get("_args_", []), list):
        yield "_args_ is a list of arguments without a name."
    if not isinstance(written.get("_partial_", False), bool):
        yield f"_partial_ is true or false, not {written['_partial_']!r:.60}."
    if written.get("_convert_", "all") not in _CONVERSIONS:
        yield f"_convert_ is {written['_convert_']!r:.60}. {suggest('', _CONVERSIONS)}"
    if written.get("_recursive_", True) is not True:
        yield (
            "_recursive_: false would hand over descriptions of parts, not parts. Delete it, or "
            "say _partial_: true of what is to be made later."
        )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _refuse_repetition(tree: Tree) -> None:
    """Lists of lists that alias each other look small, and are longer than any memory."""
    held = {id(written): container for written, container in tree.containers}
    sizes: dict[int, tuple[int, int]] = {}
    for key in held:
        _measure(key, held, sizes)
    by_parts = (id(value) for call in tree.calls for _, value in call.arguments)
    total = sum(sizes[key][0] for key in by_parts if key in sizes)
    if total > MOST_ITEMS or any(items > MOST_ITEMS for items, _ in sizes.values()):
        raise ConfigError(f"the lists and dicts hold more than {MOST_ITEMS:,} items together.")


def _measure(root: int, held: dict[int, Any], sizes: dict[int, tuple[int, int]]) -> None:
    """Notes how many items lie in a container and those inside of it, and how deep they go."""
    todo = [(root, False)]
    entered: set[int] = set()
    while todo:
        key, is_done = todo.pop()
        if key in sizes:
            continue
        items = held[key].values() if isinstance(held[key], dict) else held[key]
        inner = [id(item) for item in items if id(item) in held]
        if is_done:
            below = [sizes[one] for one in inner]
            deepest = 1 + max((depth for _, depth in below), default=0)
            if deepest > DEEPEST:
                raise ConfigError(f"lists and dicts lie more than {DEEPEST} deep in each other.")
            sizes[key] = sum(count for count, _ in below) + len(items), deepest
            continue
        if key in entered:
            raise ConfigError("a list or dict contains itself.")
        entered.add(key)
        todo.append((key, True))
        todo += [(one, False) for one in inner if one not in sizes]
