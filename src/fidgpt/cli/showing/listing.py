"""What --list prints: configs, fiddlers, tags, parts and knobs, from the index."""

from collections.abc import Iterable, Sequence

from fidgpt.cli.directives.spelling import is_base
from fidgpt.cli.index.ask import at_hand, of_chosen, whole
from fidgpt.cli.index.store import Index
from fidgpt.cli.showing.chosen import chosen_config, directive_for, knobs_of_chosen
from fidgpt.cli.showing.lists import LISTS
from fidgpt.cli.showing.tables import print_table


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
        from fidgpt.graph import ConfigError, suggest  # late: only a mistake waits for it

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
    from fidgpt.graph import ConfigError, suggest  # late: only a mistake waits for it

    near = [knob["path"] for knob in knobs]
    return ConfigError(f"{directive_for(name)} has nothing at {path!r}. {suggest(path, near)}")
