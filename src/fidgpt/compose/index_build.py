"""The index of names: built from the configs, fiddlers and components."""

import ast
import collections.abc
import contextlib
import enum
import functools
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl
from absl import flags

from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.directives import compose, split_directive
from fidgpt.compose.index import (
    COMMANDS,
    PACKAGE,
    VERSION,
    Index,
    Knob,
    can_keep,
    chosen_config,
    directive_for,
    is_listed_nowhere,
    knobs_of,
    read,
    rebuild_in_background,
    rebuild_now,
    rooms_of_projects,
    roots,
    stamps,
)
from fidgpt.graph import parts
from fidgpt.graph.docs import doc_of
from fidgpt.graph.fiddle import argument_tags
from fidgpt.graph.formulas import parse_call
from fidgpt.graph.hints import (
    fits,
    hints_of,
    is_protocol,
    is_unknown,
    members_of,
    methods_of,
    name_of,
    own_method,
)

Entry = dict[str, Any]


def names() -> dict[str, dict[str, Entry]]:
    """The entries of fidgpt's own configs, fiddlers and tags, without importing any of them."""
    own = {room: PACKAGE / room / "__init__.py" for room in ("configs", "fiddlers")}
    found = _entries(own | {"tags": PACKAGE / "tags.py"})
    reader = PACKAGE / "interop" / "hugging_face" / "config.py"
    found["configs"]["from_hf"] = function_entry(reader, "from_hf") or {}
    return found


def names_of_projects() -> dict[str, dict[str, Entry]]:
    """The same of the installed projects, by dotted name."""
    from fidgpt.compose.index import rooms_of_projects  # late: a true index has them

    found: dict[str, dict[str, Entry]] = {"configs": {}, "fiddlers": {}, "tags": {}}
    for package, rooms in rooms_of_projects().items():
        told = {room: path for room, path in rooms.items() if room in found}  # parts take imports
        for room, entries in _entries(told).items():
            named = {f"{package}.{room}.{name}": entry for name, entry in entries.items()}
            found[room] |= named
    return found


def _entries(rooms: dict[str, Path]) -> dict[str, dict[str, Entry]]:
    """What the modules of each room list, by name."""
    return {
        room: tags_of(path) if room == "tags" else functions_of(path, skip=room == "fiddlers")
        for room, path in rooms.items()
    }


def function_entry(path: Path, name: str, *, skip: int = 0) -> Entry | None:
    """What a file says of a function; `skip` of its arguments are not told. None: not there."""
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            arguments = list(_arguments(node.args))[skip:]
            return {"doc": _doc(node), "file": str(path), "line": node.lineno} | (
                {"arguments": arguments} if arguments else {}
            )
    return None


def tag_entry(path: Path, name: str) -> Entry | None:
    """What a file says of a tag. None: not there."""
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            doc = _doc(node)
            entry = {"doc": doc, "file": str(path), "line": node.lineno}
            _, _, last = doc.rstrip(".").rpartition(", ")
            is_unit = last.startswith(("in ", "per ", "from ")) and "," in doc
            return entry | ({"unit": last.removeprefix("in ")} if is_unit else {})
    return None


def class_entry(node: ast.ClassDef) -> Entry:
    """What a file says of a class: its doc, and the arguments of its own constructor."""
    inits = [
        one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"
    ]
    arguments = list(_arguments(inits[0].args))[1:] if inits else []
    return {"doc": _doc(node)} | ({"arguments": arguments} if arguments else {})


def functions_of(source: Path, *, skip: int = 0) -> dict[str, Entry]:
    """What a module lists in `__all__`, or else defines, each where it was imported from."""
    homes: dict[str, str] = {}
    body = tree_of(source).body
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    listed = [name for name in defined if not name.startswith("_")]
    for node in body:
        match node:
            case ast.ImportFrom(module=str(module), names=aliases):
                homes |= {alias.asname or alias.name: module for alias in aliases}
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                with contextlib.suppress(ValueError):  # it is computed
                    listed = ast.literal_eval(value)
    entries: dict[str, Entry] = {}
    for name in listed:
        path = source.parent / f"{homes[name].rpartition('.')[2]}.py" if name in homes else source
        entries[name] = function_entry(path, name, skip=skip) or {"doc": "", "file": str(path)}
    return entries


def tags_of(path: Path) -> dict[str, Entry]:
    """The classes of a module of tags."""
    classes = [node.name for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    return {name: tag_entry(path, name) or {} for name in classes}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """What a file says; nothing where it cannot be read."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):  # who imports it will say it better
        return ast.Module(body=[], type_ignores=[])


def _doc(node: ast.FunctionDef | ast.ClassDef) -> str:
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())


def _arguments(arguments: ast.arguments) -> Iterator[Entry]:
    positional = arguments.posonlyargs + arguments.args
    missing = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip(positional + arguments.kwonlyargs, defaults, strict=True):
        entry = {"name": argument.arg}
        if argument.annotation:
            entry["type"] = ast.unparse(argument.annotation)
        yield entry | ({"default": ast.unparse(default)} if default else {})


def offered_beside(dotted: str, kind: str) -> dict[str, Entry]:
    """What a module offers as a config, fiddler, tag or part, by dotted name.

    Args:
      dotted: a name as far as it is typed: `lab.ablations.nar` for what is in `lab.ablations`.
      kind: what is wanted.
    """
    module, _, _ = dotted.rpartition(".")
    path = source_of(module)
    if path is None or path.is_dir():
        return {}
    return {f"{module}.{name}": entry for name, entry in _offered(path, kind).items()}


def modules_beside(dotted: str) -> list[str]:
    """The dotted names of the modules in the package that a name leads to so far."""
    package, _, _ = dotted.rpartition(".")
    path = source_of(package)
    folder = path.parent if path and path.name == "__init__.py" else path
    if folder is None or not folder.is_dir():
        return []
    inside = sorted(one for one in folder.iterdir() if not one.name.startswith(("_", ".")))
    found = [one.stem for one in inside if one.suffix == ".py" or (one / "__init__.py").is_file()]
    return [f"{package}.{name}" for name in found if name.isidentifier()]


def source_of(module: str) -> Path | None:
    """The file of a module, or the folder of a package that has none; None where there is none."""
    names = module.split(".")
    if not all(name.isidentifier() for name in names):
        return None
    return next(filter(None, (_inside(Path(folder), names) for folder in sys.path)), None)


def _inside(folder: Path, names: list[str]) -> Path | None:
    *packages, last = names
    around = folder.joinpath(*packages)
    files = (around / last / "__init__.py", around / f"{last}.py", around / last)
    return next((one for one in files if one.exists()), None)


def _offered(path: Path, kind: str) -> dict[str, Entry]:
    if kind == "tag":
        return tags_of(path)
    changes = {
        node.name
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and _is_fiddler(node)
    }
    functions = functions_of(path, skip=kind == "fiddler")
    if kind == "fiddler":
        return {name: entry for name, entry in functions.items() if name in changes}
    found = {name: entry for name, entry in functions.items() if name not in changes}
    return found | (_classes(path) if kind == "part" else {})


def _is_fiddler(function: ast.FunctionDef) -> bool:
    """Whether a function takes a graph, as far as its signature tells, and returns nothing."""
    first = [*function.args.posonlyargs, *function.args.args][:1]
    returns = function.returns
    is_for_nothing = isinstance(returns, ast.Constant) and returns.value is None
    return bool(first) and (is_for_nothing or (returns is None and first[0].arg == "cfg"))


def _classes(path: Path) -> dict[str, Entry]:
    return {
        node.name: class_entry(node)
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def parts_on_offer(known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the known parts that build something which a graph could hold."""
    return {name: made for name, made in known.items() if _builds(made)}


def part_entry(made: Any) -> dict[str, Any]:
    """What is known of a part: its module, its doc and its arguments."""
    docs, hints = doc_of(made), hints_of(made)
    module = ".".join(made.__module__.split(".")[:2])
    return {
        "module": module,
        "doc": docs.summary,
        "arguments": [
            {"name": name}
            | ({"type": name_of(hints[name])} if name in hints else {})
            | ({"default": f"{p.default!r:.60}"} if p.default is not p.empty else {})
            | ({"doc": docs.parameters[name]} if name in docs.parameters else {})
            for name, p in inspect.signature(made).parameters.items()
        ],
    }


def fitting(hint: Any, offered: dict[str, Any]) -> list[str]:
    """The names of the parts on offer that may stand where a hint is asked."""
    if all(is_unknown(member) for member in members_of(hint)):
        return []
    members = members_of(hint)
    return [name for name, made in offered.items() if any(_fits(made, one) for one in members)]


def _fits(made: Any, hint: Any) -> bool:
    """As `graph.signatures.hints.fits`, and stricter where that gives the benefit of the doubt.

    What is asked for by a Protocol must have its methods, and what is asked for as a function must
    take as many arguments.
    """
    if typing.get_origin(hint) is collections.abc.Callable:
        asked, returned = typing.get_args(hint)
        return _takes(made, asked) and _makes(made, returned)
    return _makes(made, hint)


def _makes(made: Any, hint: Any) -> bool:
    returned = hints_of(made).get("return", Any)
    returned, hint = (getattr(side, "array_type", side) for side in (returned, hint))
    if is_unknown(hint) or hint in (bool, str, type(None)):
        return False
    if is_protocol(hint):
        if inspect.isfunction(made) and _answers(made, hint):
            return True
        has_methods = inspect.isclass(returned) and _has_methods(returned, hint)
        return has_methods and fits(fdl.Config(returned), hint)
    if is_protocol(returned):
        return False
    if typing.get_origin(hint):  # a list of something: its elements are parts, it is none
        return False
    if typing.is_typeddict(hint):
        return returned is hint
    if inspect.isclass(returned) and inspect.isclass(hint):
        return issubclass(returned, hint)
    return fits(fdl.Config(made), hint)


def _takes(made: Any, asked: Any) -> bool:
    if not isinstance(asked, list) or not asked:  # a partial holds all that is needed
        return True
    try:
        inspect.signature(made).bind(*asked)
    except TypeError:
        return False
    return True


def _has_methods(made: type, protocol: Any) -> bool:
    """Whether a class has the methods of a Protocol, each with the same arguments."""
    return all(
        inspect.isfunction(own := own_method(made, name)) and _is_alike(own, method, first=1)
        for name, method in methods_of(protocol).items()
    )


def _answers(function: Any, protocol: Any) -> bool:
    """Whether a function itself is what a Protocol asks, which is no more than a call."""
    asked = methods_of(protocol)
    return [*asked] == ["__call__"] and _is_alike(function, asked["__call__"], first=0)


def _is_alike(own: Any, asked: Any, *, first: int) -> bool:
    """Whether one takes the arguments of the other, by position such as may be of one kind.

    The `first` argument of a method is `self`.
    """
    count, needed = _call_shape(own)
    if (count + 1 - first, needed) != _call_shape(asked):
        return False
    pairs = zip(_hints(own)[first:count], _hints(asked)[1:], strict=True)
    return all(
        any(map(is_unknown, (*members_of(one), *members_of(other))))
        or not {*map(_kind, members_of(one))}.isdisjoint(map(_kind, members_of(other)))
        for one, other in pairs
    )


def _hints(function: Any) -> list[Any]:
    """What a function asks of each argument by position."""
    hints = hints_of(function)
    names = list(inspect.signature(function).parameters)[: _call_shape(function)[0]]
    return [hints.get(name, Any) for name in names]


def _kind(hint: Any) -> Any:
    """What a hint asks, whatever the sizes of a tensor."""
    return getattr(hint, "dtypes", hint) if hasattr(hint, "array_type") else hint


def _call_shape(method: Any) -> tuple[int, set[str]]:
    """How many arguments a method takes by position, and which it needs by name."""
    parameters = inspect.signature(method).parameters.values()
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    needed = {
        one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty
    }
    return sum(one.kind not in by_name for one in parameters), needed


def _builds(made: Any) -> bool:
    """Whether calling it makes something that a graph could hold, by arguments that are known."""
    try:
        inspect.signature(made)
    except ValueError:  # such as a heir of dict
        return False
    if inspect.isclass(made):
        is_shape = is_protocol(made) or inspect.isabstract(made)
        return not is_shape and not issubclass(made, BaseException | enum.Enum)
    returned = hints_of(made).get("return", Any) if inspect.isfunction(made) else Any
    return not is_unknown(returned) and returned not in (None, type(None))


_OF_ALL = "fidgpt.cli.app"
_OF_TRAINED = "fidgpt.cli.trained"


def command_flags() -> dict[str, list[dict[str, Any]]]:
    """By command, its flags: name, help, whether it may stand alone, and the values it takes."""
    for module in COMMANDS.values():
        importlib.import_module(module)
    by_module = flags.FLAGS.flags_by_module_dict()
    shared = [name for name in by_module if _is_shared(name)]
    used = {
        command: [module, *(shared if module.startswith("fidgpt.cli.") else [_OF_TRAINED, _OF_ALL])]
        for command, module in COMMANDS.items()
    }
    return {
        command: [_entry(flag) for name in modules for flag in by_module.get(name, [])]
        for command, modules in used.items()
    }


def _is_shared(module: str) -> bool:
    return module.startswith("fidgpt.cli.") and module not in {*COMMANDS.values(), _OF_TRAINED}


def _entry(flag: flags.Flag) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": flag.name, "help": " ".join((flag.help or "").split())}
    entry["help"] = entry["help"].partition("; repeat this option")[0]
    if flag.boolean:
        entry["alone"] = True
    values = getattr(flag.parser, "enum_values", None) or []
    words = [word for word in values if word not in ("true", "false")]
    return entry | ({"choices": words} if words else {})


def build_index() -> Index:
    """The index, from everything that can be named on the command line."""
    own = names()
    before = stamps(roots([]))  # a file that changes meanwhile shall make it untrue
    catalogue = own_catalogue()
    files = _files(catalogue)
    offered = parts_on_offer(catalogue.parts)
    hints: dict[str, Any] = {}
    knobs = {
        name: knobs_of(root, lambda hint: hints.setdefault(name_of(hint), hint))
        for name, root in _graphs(catalogue).items()
    }
    return {
        "version": VERSION,
        "roots": roots(files),
        "stamps": stamps(files) | before,
        "configs": _functions(catalogue.configs, own["configs"]),
        "fiddlers": _functions(catalogue.fiddlers, own["fiddlers"], skip=1),
        "tags": {
            name: own["tags"].get(name) or tag_entry(_file(tag), tag.__name__) or {}
            for name, tag in catalogue.tags.items()
        },
        "parts": {name: part_entry(made) for name, made in offered.items()},
        "fits": _not_empty({name: fitting(hint, offered) for name, hint in hints.items()}),
        "knobs": knobs,
        "quantities": {name: quantities_of(knobs[name]) for name in knobs},
        "flags": command_flags(),
    }


def build_chosen(directive: str, allowed: Sequence[str] = ()) -> Index:
    """The index of the one config that a directive begins with, by the name that it has there.

    Raises:
      ConfigError: the directive is wrong.
    """
    catalogue = own_catalogue(tuple(allowed))
    root = compose([directive], catalogue)
    kind, rest = split_directive(directive)
    made = catalogue.find(kind, parse_call(rest).name) if kind == "config" else None
    seen = roots([str(Path(rest).absolute())] if kind == "config_file" else [])
    seen += _folders([made, *(fdl.get_callable(node.value) for node in parts(root))])
    hints: dict[str, Any] = {}
    knobs = knobs_of(root, lambda hint: hints.setdefault(name_of(hint), hint))
    offered = parts_on_offer(catalogue.parts)
    own = _own_tags(root, catalogue)
    found = quantities_of(knobs)
    name = chosen_config([directive])
    return {
        "version": VERSION,
        "roots": seen,
        "stamps": stamps(seen),
        "configs": {name: {"doc": doc_of(made).summary if made else ""}},
        "tags": {dotted: tag_entry(_file(tag), tag.__name__) for dotted, tag in own.items()},
        "parts": {name: part_entry(made) for name, made in offered.items()},
        "fits": _not_empty({name: fitting(hint, offered) for name, hint in hints.items()}),
        "knobs": {name: knobs},
        "quantities": {name: found | {one: found[tag.__name__] for one, tag in own.items()}},
    }


def quantities_of(knobs: list[Knob]) -> dict[str, dict[str, list[str]]]:
    """For each tag of a config's knobs the paths that say it and those that hear it."""
    found: dict[str, dict[str, list[str]]] = {}
    for knob in knobs:
        for tag in knob.get("tags", []):
            both = found.setdefault(tag, {"says": [], "hears": []})
            if "heard" in knob:
                both["hears"].append(knob["path"])
            elif "unset" not in knob:
                both["says"].append(knob["path"])
    return found


def _graphs(catalogue: Catalogue) -> dict[str, fdl.Buildable]:
    """The graph of every config that needs no argument; one that fails has no knobs to show."""
    graphs: dict[str, fdl.Buildable] = {}
    for name, function in catalogue.configs.items():
        try:
            made = function()
        except Exception:  # in code that somebody else wrote; naming it will say what is wrong
            continue
        if isinstance(made, fdl.Buildable):
            graphs[name] = made
    return graphs


def _functions(
    known: Mapping[str, Callable[..., Any]], own: dict[str, Entry], *, skip: int = 0
) -> dict[str, Entry]:
    """The entries of functions; those of projects outside are read where they were written."""
    return {
        name: own.get(name) or function_entry(_file(one), one.__name__, skip=skip) or {"doc": ""}
        for name, one in known.items()
    }


def _files(catalogue: Catalogue) -> list[str]:
    """The sources of what is named, and the modules of projects that list it."""
    listed = [*catalogue.configs.values(), *catalogue.fiddlers.values(), *catalogue.tags.values()]
    rooms = [path for rooms in rooms_of_projects().values() for path in rooms.values()]
    folders = [str(path.parent if path.stem == "__init__" else path) for path in rooms]
    return [path for one in listed if (path := str(_file(one))).endswith(".py")] + folders


def _file(named: Any) -> Path:
    module = sys.modules.get(getattr(inspect.unwrap(named), "__module__", ""))
    return Path(getattr(module, "__file__", None) or "")


def _own_tags(root: Any, catalogue: Catalogue) -> dict[str, Any]:
    """The tags of a graph that have no name in the catalogue, by dotted name."""
    carried = {
        tag for node in parts(root) for tags in argument_tags(node.value).values() for tag in tags
    }
    named = set(catalogue.tags.values())
    return {f"{tag.__module__}.{tag.__name__}": tag for tag in carried - named}


def _folders(named: Iterable[Any]) -> list[str]:
    """Where the packages lie that somebody works on, in which some of what is named is written."""
    tops = {(getattr(one, "__module__", None) or "").partition(".")[0] for one in named}
    files = [getattr(sys.modules.get(top), "__file__", None) for top in tops - {"fidgpt"}]
    own = [Path(file) for file in files if file and "site-packages" not in Path(file).parts]
    return sorted(str(file.parent if file.stem == "__init__" else file) for file in own)


def _not_empty(lists: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: one for name, one in lists.items() if one}


def at_hand() -> Index:
    """What can be known at once, torch not being loaded.

    Where the index is not true any more, names are read anew from the sources, and knobs are told
    as they were.
    """
    index, is_true = read()
    return index if index and is_true else (index or {}) | _names()


def for_completion(
    *, with_knobs: bool, directives: Sequence[str] = (), allowed: Sequence[str] = ()
) -> Index:
    """What is at hand, while an index that is not true any more is built anew in the background.

    Where there never was one, and knobs are asked for, it is waited for.

    Args:
      with_knobs: whether what is typed is a path or a quantity.
      directives: those on the line, of which the first may begin with what no list has.
      allowed: packages that --allow names there.
    """
    index = _for_completion(with_knobs)
    name = chosen_config(directives)
    known = {name, name.partition("(")[0]} & index.get("knobs", {}).keys()
    if not with_knobs or known or not is_listed_nowhere(name):
        return index
    from fidgpt.compose.index import with_last_known  # late: most configs are on a list

    try:
        return with_last_known(index, directive_for(name), allowed)
    except ValueError:  # which a ConfigError is: the line begins with what there is not
        return index


def _for_completion(with_knobs: bool) -> Index:
    index, is_true = read()
    if index and is_true:
        return index
    if index is None and with_knobs and can_keep():
        return whole()
    rebuild_in_background()

    return (index or {}) | _names() | {"flags": command_flags()}


def whole() -> Index:
    """All of it; where it is missing or not true any more it is built first, and that is said."""
    index, is_true = read()
    if index and is_true:
        return index
    print("Looking at all configs and parts (once, until they change) ...", file=sys.stderr)
    try:
        return rebuild_now()
    except RuntimeError as error:
        print(f"  not possible: {error}", file=sys.stderr)
        return (index or {}) | _names()


def of_chosen(directives: Sequence[str], allowed: Sequence[str] = ()) -> Index:
    """The whole, and in it the config that directives begin with, where no list has it.

    Raises:
      ConfigError: there is no such config.
    """
    index, name = whole(), chosen_config(directives)
    if name in index.get("knobs", {}) or not is_listed_nowhere(name):
        return index
    from fidgpt.compose.index import with_chosen  # late: most configs are on a list

    return with_chosen(index, directive_for(name), allowed)


def _names() -> Index:

    own, others = names(), names_of_projects()
    return {kind: own[kind] | others[kind] for kind in own}
