"""--list and --help."""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from absl import flags

from fidgpt.cli.colors import print_table
from fidgpt.compose.directives import DIRECTIVES, SIGNED, is_base
from fidgpt.compose.index import Index, base_of, index_for
from fidgpt.errors import ConfigError, suggest

LISTS = ("configs", "fiddlers", "tags", "parts", "knobs")
_HIDDEN = ("help", "helpshort", "helpfull", "helpxml", "only_check_args")
_ENUM = re.compile(r"^<[^>]*>: ")
_LATER_ITEM = re.compile(r"\[[1-9]\d*\]")


def print_listing(what: str, directives: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Print what `--list=what` asks for, of the config that directives make.

    Args:
      what: `all` or one of `LISTS`; `parts:PATH` or `knobs:PATH` for parts or knobs of a path.
      directives: from the command line.
      allowed: packages that --allow names.

    Raises:
      ConfigError: there is no such list, config or path.
    """
    kind, _, path = what.partition(":")
    if kind not in ("all", *LISTS) or (path and kind not in ("parts", "knobs")):
        raise ConfigError(f"--list={what}: {suggest(what, LISTS)}")
    of_config = kind in ("all", "tags", "knobs") or bool(path)
    index = _index_after(directives, allowed) if of_config else index_for(directives, allowed)
    base = _made_by(directives)
    top = re.compile(rf"{re.escape(path)}(?!\w)" if path else "")
    below = [parameter for parameter in index["parameters"] if top.match(parameter["path"])]
    if path and not below:
        known = [parameter["path"] for parameter in index["parameters"]]
        raise ConfigError(f"{base} has nothing at {path!r}. {suggest(path, known)}")
    for name in ("config", "fiddler"):
        if kind in ("all", f"{name}s"):
            tables: dict[str, list[list[str]]] = {}
            for key, described in index[f"{name}s"].items():
                row = [f"{name}:{key}{described['arguments']}", described["doc"]]
                group = f": {described['group'].rstrip('.')}" if name == "fiddler" else ""
                tables.setdefault(f"{name.capitalize()}s{group}", []).append(row)
            for title, rows in sorted(tables.items()):
                print_table(title, rows)
    if kind in ("all", "tags"):
        rows = [_tag_row(tag, entry["doc"], index) for tag, entry in index["tags"].items()]
        print_table(f"Tags, as {base} sets them", rows)
    if kind in ("all", "parts"):
        names, title = index["parts"], "Parts"
        if path:
            expected, value = below[0]["type"], below[0]["value"]
            from fidgpt.compose.index_build import fitting_at  # late: it loads torch

            names = fitting_at(path, directives, allowed)
            title = f"Parts that fit {path} ({expected}), which is {value or 'not set'}"
        entries = {name: index["parts"][name] for name in names if name in index["parts"]}
        rows = [[name, part["module"], part["doc"]] for name, part in entries.items()]
        rows.sort(key=lambda row: (row[1], row[0]))
        print_table(title if rows else f"{title}: none of fidgpt's own.", rows)
    if kind == "knobs":
        rows = [[row["path"], row["type"], _value(row), row.get("doc", "")] for row in below]
        print_table(f"Settings of {base}", rows)


def print_help(values: flags.FlagValues, what: str) -> None:
    """Print a command's flags, then the parameters of its config, or which configs there are.

    Args:
      values: the flags.
      what: what the command does, in paragraphs.

    Raises:
      ConfigError: there is no such config.
    """
    for paragraph in what.strip().split("\n\n"):
        print(_filled(" ".join(paragraph.split())), end="\n\n")
    own = [
        flag
        for module, held in values.flags_by_module_dict().items()
        if module.startswith("fidgpt.") or module == sys.argv[0]
        for flag in held
        if flag.name not in _HIDDEN
    ]
    own.sort(key=lambda flag: (flag.name != "config", flag.name))
    print_table("Flags", [_flag_row(flag) for flag in own])
    if "config" not in values:
        return
    kinds = [[f"{kind.kind}:{kind.syntax}", kind.help] for kind in DIRECTIVES.values()]
    print_table(f"Directives; {SIGNED} take *=, += and -= too", kinds)
    directives = values["config"].value or []
    index = _index_after(directives, values["allow"].value or [])
    if directives:
        print_parameters(directives, index)
        return
    names = ", ".join(index["configs"])
    print(_filled(f"Configs, of which NAME --help shows what can be set: {names}."))
    print(_filled("--list shows all names; --helpfull the flags of absl, too."))


def print_parameters(directives: Sequence[str], index: Index) -> None:
    """Print what one would want to set: no inherited value, no component, no repeated layer."""
    values = {parameter["path"]: parameter["value"] for parameter in index["parameters"]}
    nodes = {row["path"]: row["node"] for row in index["parameters"] if "node" in row}
    groups: dict[str, list[dict]] = {}
    for parameter in index["parameters"]:
        is_value = not {"inherited_from", "node"} & parameter.keys() and parameter["value"]
        first = _LATER_ITEM.sub("[0]", parameter["path"])
        is_repeated = first != parameter["path"] and values.get(first) == parameter["value"]
        if is_value and not is_repeated and (parameter.get("doc") or parameter["type"] != "Any"):
            holder = parameter["path"]
            while holder and (holder == parameter["path"] or holder not in nodes):
                holder = holder[: max(holder.rfind("."), holder.rfind("["), 0)]
            groups.setdefault(holder, []).append(parameter)
    print(*map(_filled, index["doc"].splitlines()), "", sep="\n")
    base = base_of(directives)
    print(f"Parameters of {_made_by(directives)}, for --config=set:PATH=VALUE:\n")
    for holder, held in groups.items():
        held.sort(key=lambda parameter: "unset" in parameter)
        rows = [
            [row["path"], _short(row["type"]), row["value"], row.get("doc", "")] for row in held
        ]
        print_table(f"{holder} ({nodes[holder]})" if holder else base, rows)
    print("  --list=knobs shows components and inherited values, too; --list=tags shared values.")


def _filled(line: str) -> str:
    """Return a line as wide as a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    return textwrap.fill(line, width, break_on_hyphens=False)


def _tag_row(tag: str, doc: str, index: Index) -> list[str]:
    own = [parameter for parameter in index["parameters"] if tag in parameter.get("tags", ())]
    inherits = sum("inherited_from" in parameter for parameter in own)
    sets = [parameter for parameter in own if not {"inherited_from", "unset"} & parameter.keys()]
    set_by = ", ".join(f"{parameter['path']}={parameter['value']}" for parameter in sets)
    return [f"tag:{tag}", set_by, f"inherited by {inherits}" if inherits else "", doc]


def _index_after(directives: Sequence[str], allowed: Sequence[str]) -> Index:
    """Return the index of the graph of all directives; the index of a base alone loads no torch."""
    if all(map(is_base, directives[:1])) and not directives[1:]:
        return index_for(directives, allowed)
    from fidgpt.compose.index_build import build_index

    return build_index(directives, allowed)


def _made_by(directives: Sequence[str]) -> str:
    """Return the name of the config that directives make."""
    base, changes = base_of(directives), [text for text in directives if not is_base(text)]
    more = f" and {len(changes) - 2} more" if changes[2:] else ""
    return f"{base} with {', '.join(changes[:2])}{more}" if changes else base


def _value(entry: dict) -> str:
    if "inherited_from" in entry:
        return f"{entry['value']} <- {entry['inherited_from']}"
    return f"*{entry['same_as']}" if "same_as" in entry else entry["value"]


def _short(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:27]}..."


def _flag_row(flag: flags.Flag) -> list[str]:
    usage = f"--{flag.name}"
    if flag.flag_type() != "bool":
        usage += "[=...]" if flag.boolean else "=..."
    text = " ".join((flag.help or "").split()).partition("; repeat this option")[0]
    text = _ENUM.sub("", text)  # as absl shows choices; they come last here
    choices = getattr(flag.parser, "enum_values", None) or []
    choices = [word for word in choices if word not in ("true", "false")]
    return [usage, f"{text} ({', '.join(choices)})" if choices else text]
