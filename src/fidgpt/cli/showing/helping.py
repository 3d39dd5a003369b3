"""What --help prints: the flags of a command, and the knobs of the config that is chosen."""

import re
import sys
from collections.abc import Sequence

from absl import flags

from fidgpt.cli.index.ask import at_hand
from fidgpt.cli.showing.listing import tell_what_is_left_out
from fidgpt.cli.showing.tables import print_table

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
    from fidgpt.cli.index.ask import of_chosen  # late: not every command has a config
    from fidgpt.cli.showing.chosen import directive_for, knobs_of_chosen

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
