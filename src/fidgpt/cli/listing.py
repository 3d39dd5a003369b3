"""--list and --help."""

import re
import sys
from collections.abc import Iterable, Sequence

from absl import flags

from fidgpt.compose.index import (
    Index,
    at_hand,
    chosen_config,
    directive_for,
    knobs_of_chosen,
    of_chosen,
    whole,
)
from fidgpt.compose.spelling import LISTS, is_base

Rows = Sequence[Sequence[str]]


def print_table(title: str, columns: Sequence[str], rows: Rows) -> None:
    """Prints a table under its title; columns that are empty in every row are left out."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    columns = [columns[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    if sys.stdout.isatty():
        _draw(title, columns, rows)
    else:
        print(f"{title}\n{aligned(rows)}\n")


def aligned(rows: Rows) -> str:
    """Rows with their columns below each other, indented."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(f"  {line}" for line in lines)


def _draw(title: str, columns: Sequence[str], rows: Rows) -> None:
    from rich.console import Console  # late: a pipe needs none of it
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, style="bold" if i == 0 else None, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    console.print(Text(title, style="bold underline"))
    console.print(table)
    console.print()


def print_listing(what: str, directives: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Prints what `--list=what` asks for, with the config that the directives begin with.

    Args:
      what: a kind, and a path where that can have one.
      directives: those on the line.
      allowed: packages that --allow names.

    Raises:
      ConfigError: there is no such kind, config or place.
    """
    kind, _, path = what.partition(":")
    if kind in ("configs", "fiddlers") and not path:
        _functions(kind, at_hand())
    elif kind == "all":
        index = of_chosen(directives, allowed)
        _functions("configs", whole())
        _functions("fiddlers", index)
        _tags(directives, index)
        _parts(_of_use(index), index, "Parts")
    elif kind == "tags" and not path:
        _tags(directives, of_chosen(directives, allowed))
    elif kind == "parts":
        _parts_on_list(path, directives, of_chosen(directives, allowed))
    elif kind == "knobs":
        _knobs(path, directives, of_chosen(directives, allowed))
    else:
        from fidgpt.graph import (
            ConfigError,  # late: only a mistake waits for it
            suggest,  # late: only a mistake waits for it
        )

        raise ConfigError(f"--list={what}: {suggest(what, LISTS)}")


def call_text(name: str, entry: dict) -> str:
    """A name with its arguments, as one would write the call."""
    arguments = [
        one["name"] + (f"={one['default']}" if "default" in one else "=...")
        for one in entry.get("arguments", [])
    ]
    return f"{name}({', '.join(arguments)})" if arguments else name


def _functions(kind: str, index: Index) -> None:
    prefix = kind.removesuffix("s")
    rows = [[f"{prefix}:{call_text(name, one)}", one["doc"]] for name, one in index[kind].items()]
    print_table(kind.capitalize(), ["directive", "doc"], rows)


def _tags(directives: Sequence[str], index: Index) -> None:
    name = chosen_config(directives)
    quantities = index.get("quantities", {}).get(name, {})
    values = {knob["path"]: knob["value"] for knob in index.get("knobs", {}).get(name, [])}
    rows = []
    for tag, entry in index["tags"].items():
        places = quantities.get(tag, {"says": [], "hears": []})
        said = ", ".join(f"{path}={values[path]}" for path in places["says"])
        heard = len(places["hears"])
        places_text = f"heard in {heard} place{'' if heard == 1 else 's'}" if heard else ""
        rows.append([f"tag:{tag}", said, places_text, entry["doc"]])
    title = f"Tags, as {directive_for(name)} says them" if quantities else "Tags"
    print_table(title, ["tag", "said by", "heard", "doc"], rows)
    tell_what_is_left_out(directives)


def _parts_on_list(path: str, directives: Sequence[str], index: Index) -> None:
    if not path:
        _parts(_of_use(index), index, "Parts")
        return
    name, knobs = knobs_of_chosen(directives, index)
    knob = next((one for one in knobs if one["path"] == path), None)
    if knob is None:
        raise _no_such_place(path, name, knobs)
    names = index["fits"].get(knob["type"], [])
    title = f"Parts that fit {path} ({knob['type']}), which is {knob['value'] or 'not said'}"
    if names:
        _parts(names, index, title)
    else:
        print(f"{title}: none of fidgpt's own.")


def _of_use(index: Index) -> set[str]:
    """The parts that fit some place of some config."""
    return {name for names in index.get("fits", {}).values() for name in names}


def _parts(names: Iterable[str], index: Index, title: str) -> None:
    rows = [
        [name, index["parts"][name]["module"], index["parts"][name]["doc"]]
        for name in sorted(names, key=lambda name: (index["parts"][name]["module"], name))
    ]
    print_table(title, ["part", "module", "doc"], rows)


def _knobs(path: str, directives: Sequence[str], index: Index) -> None:
    name, knobs = knobs_of_chosen(directives, index)
    below = [knob for knob in knobs if is_below(knob["path"], path)]
    if not below:
        raise _no_such_place(path, name, knobs)
    rows = [[knob["path"], knob["type"], value_text(knob), knob.get("doc", "")] for knob in below]
    print_table(f"Knobs of {directive_for(name)}", ["path", "type", "value", "doc"], rows)
    tell_what_is_left_out(directives)


def tell_what_is_left_out(directives: Sequence[str]) -> None:
    """Says that values are those of the config alone, where directives would change it."""
    if not all(map(is_base, directives)):
        print("These are the values before the directives that follow; --print shows them after.")


def is_below(path: str, top: str) -> bool:
    """Whether a path is `top` or leads on from it; everything is below the empty path."""
    return not top or (path.startswith(top) and path[len(top) : len(top) + 1] in ("", ".", "["))


def value_text(knob: dict) -> str:
    """The value of a knob, and where it is heard from or first written."""
    if "heard" in knob:
        return f"{knob['value']} <- {knob['heard']}"
    return f"*{knob['same']}" if "same" in knob else knob["value"]


def _no_such_place(path: str, name: str, knobs: list[dict]) -> Exception:
    from fidgpt.graph import (
        ConfigError,  # late: only a mistake waits for it
        suggest,  # late: only a mistake waits for it
    )

    near = [knob["path"] for knob in knobs]
    return ConfigError(f"{directive_for(name)} has nothing at {path!r}. {suggest(path, near)}")


_HIDDEN = ("help", "helpshort", "helpfull", "helpxml", "only_check_args")
_ENUM = re.compile(r"^<[^>]*>: ")
_LONGEST_TYPE = 30
_LATER_ITEM = re.compile(r"\[[1-9]\d*\]")


def print_help(values: flags.FlagValues) -> None:
    """Prints a command's flags, then the knobs of its config, or which configs there are.

    Raises:
      ConfigError: there is no such config.
    """
    print(f"{(sys.modules['__main__'].__doc__ or '').strip()}\n")
    print_table("Flags", ["flag", "what it does"], _flag_rows(values))
    if "config" not in values:
        return
    if values["config"].value:
        print_knobs(values["config"].value, values["allow"].value or [])
        return
    index = at_hand()
    print(
        f"Configs: {', '.join(index['configs'])}.\n"
        "  --config=config:NAME --help shows what can be set in one of them.\n"
        "  --list shows all that has a name; --helpfull the flags of absl, too."
    )


def print_knobs(directives: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Prints what one would want to set: no value that is heard, no part, no layer like the first.

    Args:
      directives: those on the line, of which the first says where the graph begins.
      allowed: packages that --allow names.

    Raises:
      ConfigError: there is no such config.
    """
    from fidgpt.compose.index import directive_for, knobs_of_chosen, of_chosen

    index = of_chosen(directives, allowed)
    name, knobs = knobs_of_chosen(directives, index)
    parts = {knob["path"]: knob["part"] for knob in knobs if "part" in knob}
    groups: dict[str, list[dict]] = {}
    for knob in _worth_showing(knobs):
        groups.setdefault(_holder(knob["path"], parts), []).append(knob)
    chosen = directive_for(name)
    print(f"{index['configs'][name]['doc']}\n" if index["configs"][name]["doc"] else "")
    print(f"What {chosen} can be told, as --config=set:PATH=VALUE:\n")
    for holder, held in groups.items():
        held.sort(key=lambda knob: "unset" in knob)  # what somebody said comes first
        rows = [
            [knob["path"], _short(knob["type"]), knob["value"], knob.get("doc", "")]
            for knob in held
        ]
        title = f"{holder} ({parts[holder]})" if holder else chosen
        print_table(title, ["path", "type", "value", "doc"], rows)
    print(
        "  --list=knobs shows parts and heard values, too; --list=tags what is said once for all."
    )
    tell_what_is_left_out(directives)


def _worth_showing(knobs: list[dict]) -> list[dict]:
    known = {knob["path"]: knob["value"] for knob in knobs}
    return [
        knob
        for knob in knobs
        if not {"heard", "part", "holds"} & knob.keys()
        and knob["value"]
        and (knob.get("doc") or knob["type"] != "Any")
        and not _is_like_the_first(knob, known)
    ]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TYPE else f"{text[: _LONGEST_TYPE - 3]}..."


def _is_like_the_first(knob: dict, known: dict[str, str]) -> bool:
    first = _LATER_ITEM.sub("[0]", knob["path"])
    return first != knob["path"] and known.get(first) == knob["value"]


def _holder(path: str, parts: dict[str, str]) -> str:
    """The path of the nearest part around a knob."""
    while path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
        if path in parts:
            return path
    return ""


def _flag_rows(values: flags.FlagValues) -> list[list[str]]:
    own = [
        flag
        for module, held in values.flags_by_module_dict().items()
        if module.startswith("fidgpt.") or module == sys.argv[0]
        for flag in held
        if flag.name not in _HIDDEN
    ]
    return [[_usage(flag), _explanation(flag)] for flag in sorted(own, key=_importance)]


def _usage(flag: flags.Flag) -> str:
    if flag.flag_type() == "bool":
        return f"--{flag.name}"
    return f"--{flag.name}[=...]" if flag.boolean else f"--{flag.name}=..."


def _explanation(flag: flags.Flag) -> str:
    text = " ".join((flag.help or "").split()).partition("; repeat this option")[0]
    text = _ENUM.sub("", text)  # as absl shows choices; they come last here
    choices = [word for word in getattr(flag.parser, "enum_values", []) if word not in _BOOLEAN]
    return f"{text} ({', '.join(choices)})" if choices else text


_BOOLEAN = ("true", "false")


def _importance(flag: flags.Flag) -> tuple[bool, str]:
    return flag.name != "config", flag.name
