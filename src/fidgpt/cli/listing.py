"""--list and --help."""

import re
import sys
from collections.abc import Iterable, Sequence

from absl import flags

from fidgpt.compose.directives import is_base
from fidgpt.compose.index import Index, base_of, index_for

LISTS = ("configs", "fiddlers", "tags", "parts", "knobs")
_OF_PATHS = ("parts", "knobs")  # lists of what is at one path
_HIDDEN = ("help", "helpshort", "helpfull", "helpxml", "only_check_args")
_ENUM = re.compile(r"^<[^>]*>: ")
_LATER_ITEM = re.compile(r"\[[1-9]\d*\]")
_LONGEST_TYPE = 30


def print_listing(what: str, directives: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Print what `--list=what` asks for, of the config that directives begin with.

    Args:
      what: `all` or one of `LISTS`; `parts:PATH` or `knobs:PATH` for those of a path.
      directives: those on the command line.
      allowed: packages that --allow names.

    Raises:
      ConfigError: there is no such list, config or path.
    """
    kind, _, path = what.partition(":")
    if kind not in ("all", *LISTS) or (path and kind not in _OF_PATHS):
        raise _error(f"--list={what}:", what, LISTS)
    index, base = index_for(directives, allowed), base_of(directives)
    if kind in ("all", "configs"):
        _print_functions("config", index)
    if kind in ("all", "fiddlers"):
        _print_functions("fiddler", index)
    if kind in ("all", "tags"):
        _print_tags(base, index)
    if kind == "parts" and path:
        _print_fitting(path, base, index)
    elif kind in ("all", "parts"):
        _print_parts({name for names in index["fits"].values() for name in names}, "Parts", index)
    elif kind == "knobs":
        below = [one for one in index["parameters"] if _is_below(one["path"], path)]
        if not below:
            raise _no_such_path(path, base, index)
        rows = [[one["path"], one["type"], _value(one), one.get("doc", "")] for one in below]
        print_table(f"Settings of {base}", ["path", "type", "value", "doc"], rows)
    if kind in ("all", "tags", "knobs"):
        _print_note(directives)


def print_help(values: flags.FlagValues) -> None:
    """Print a command's flags, then the parameters of its config, or which configs there are.

    Raises:
      ConfigError: there is no such config.
    """
    print(f"{(sys.modules['__main__'].__doc__ or '').strip()}\n")
    own = [
        flag
        for module, held in values.flags_by_module_dict().items()
        if module.startswith("fidgpt.") or module == sys.argv[0]
        for flag in held
        if flag.name not in _HIDDEN
    ]
    own.sort(key=lambda flag: (flag.name != "config", flag.name))
    print_table("Flags", ["flag", "what it does"], [_flag_row(flag) for flag in own])
    if "config" not in values:
        return
    directives = values["config"].value or []
    index = index_for(directives, values["allow"].value or [])
    if directives:
        print_parameters(directives, index)
        return
    print(
        f"Configs: {', '.join(index['configs'])}.\n"
        "  --config=config:NAME --help shows what can be set in one of them.\n"
        "  --list shows all names; --helpfull the flags of absl, too."
    )


def print_parameters(directives: Sequence[str], index: Index) -> None:
    """Print what one would want to set: no inherited value, no component, no repeated layer."""
    base = base_of(directives)
    values = {one["path"]: one["value"] for one in index["parameters"]}
    nodes = {one["path"]: one["node"] for one in index["parameters"] if "node" in one}
    groups: dict[str, list[dict]] = {}
    for one in index["parameters"]:
        is_value = not {"inherited_from", "node"} & one.keys() and one["value"]
        first = _LATER_ITEM.sub("[0]", one["path"])
        is_repeated = first != one["path"] and values.get(first) == one["value"]
        if is_value and not is_repeated and (one.get("doc") or one["type"] != "Any"):
            groups.setdefault(_holder(one["path"], nodes), []).append(one)
    print(f"{index['doc']}\n" if index["doc"] else "")
    print(f"Parameters of {base}, for --config=set:PATH=VALUE:\n")
    for holder, held in groups.items():
        held.sort(key=lambda one: "unset" in one)
        rows = [
            [one["path"], _short(one["type"]), one["value"], one.get("doc", "")] for one in held
        ]
        title = f"{holder} ({nodes[holder]})" if holder else base
        print_table(title, ["path", "type", "value", "doc"], rows)
    print("  --list=knobs shows components and inherited values, too; --list=tags shared values.")
    _print_note(directives)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table under its title; columns that are empty in every row are left out."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    rows = [[row[i] for i in kept] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        print(title)
        for row in rows:
            print("  " + "  ".join(map(str.ljust, row, widths)).rstrip())
        print()
        return
    from rich.console import Console  # late: a pipe needs none of it
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for i in kept:
        table.add_column(columns[i], style="bold" if i == 0 else None, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    console.print(Text(title, style="bold underline"), table, "", sep="\n")


def _print_functions(kind: str, index: Index) -> None:
    entries = index[f"{kind}s"].items()
    rows = [[f"{kind}:{name}{one['arguments']}", one["doc"]] for name, one in entries]
    print_table(f"{kind.capitalize()}s", ["directive", "doc"], rows)


def _print_tags(base: str, index: Index) -> None:
    rows = []
    for tag, entry in index["tags"].items():
        own = [one for one in index["parameters"] if tag in one.get("tags", ())]
        inherits = sum("inherited_from" in one for one in own)
        sets = [one for one in own if not {"inherited_from", "unset"} & one.keys()]
        set_by = ", ".join(f"{one['path']}={one['value']}" for one in sets)
        count = f"inherited by {inherits}" if inherits else ""
        rows.append([f"tag:{tag}", set_by, count, entry["doc"]])
    print_table(f"Tags, as {base} sets them", ["tag", "set by", "inherited", "doc"], rows)


def _print_fitting(path: str, base: str, index: Index) -> None:
    found = next((one for one in index["parameters"] if one["path"] == path), None)
    if found is None:
        raise _no_such_path(path, base, index)
    names = index["fits"].get(found["type"], [])
    title = f"Parts that fit {path} ({found['type']}), which is {found['value'] or 'not set'}"
    if names:
        _print_parts(names, title, index)
    else:
        print(f"{title}: none of fidgpt's own.")


def _print_parts(names: Iterable[str], title: str, index: Index) -> None:
    rows = [[name, index["parts"][name]["module"], index["parts"][name]["doc"]] for name in names]
    print_table(title, ["part", "module", "doc"], sorted(rows, key=lambda row: (row[1], row[0])))


def _print_note(directives: Sequence[str]) -> None:
    if not all(map(is_base, directives)):
        print("These are the values before the directives that follow; --print shows them after.")


def _is_below(path: str, top: str) -> bool:
    return not top or (path.startswith(top) and path[len(top) : len(top) + 1] in ("", ".", "["))


def _holder(path: str, nodes: dict[str, str]) -> str:
    """The path of the nearest node around a parameter."""
    while path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
        if path in nodes:
            break
    return path


def _value(entry: dict) -> str:
    if "inherited_from" in entry:
        return f"{entry['value']} <- {entry['inherited_from']}"
    return f"*{entry['same_as']}" if "same_as" in entry else entry["value"]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TYPE else f"{text[: _LONGEST_TYPE - 3]}..."


def _flag_row(flag: flags.Flag) -> list[str]:
    usage = f"--{flag.name}"
    if flag.flag_type() != "bool":
        usage += "[=...]" if flag.boolean else "=..."
    text = " ".join((flag.help or "").split()).partition("; repeat this option")[0]
    text = _ENUM.sub("", text)  # as absl shows choices; they come last here
    choices = getattr(flag.parser, "enum_values", None) or []
    choices = [word for word in choices if word not in ("true", "false")]
    return [usage, f"{text} ({', '.join(choices)})" if choices else text]


def _no_such_path(path: str, base: str, index: Index) -> Exception:
    known = [one["path"] for one in index["parameters"]]
    return _error(f"{base} has nothing at {path!r}.", path, known)


def _error(message: str, name: str, known: Iterable[str]) -> Exception:
    from fidgpt.graph import ConfigError, suggest  # late: takes Fiddle

    return ConfigError(f"{message} {suggest(name, known)}")
