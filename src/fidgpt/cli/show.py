"""The forms of --print, --why, --diff and --repro."""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from fidgpt.cli.app import only
from fidgpt.cli.flags import FLAGS

if TYPE_CHECKING:
    import fiddle as fdl

    from fidgpt.compose.catalogue import Catalogue


flags.DEFINE_multi_string(
    "why", [], "Tell who said the value at this path, who said it before, and what it hears."
)
flags.DEFINE_string(
    "diff", None, "Show what differs from another graph: a config, a file or a run directory."
)
flags.DEFINE_enum(
    "diff_form",
    "text",
    ["text", "directives", "patch", "svg", "html"],
    "How --diff shows it: as lines, as directives or a patch that make the difference, drawn, or "
    "as a page for a browser with both side by side.",
)
flags.DEFINE_bool("repro", False, "Print the fewest directives that make this graph again.")


def is_asked() -> bool:
    """Whether some flag asks to be shown something."""
    return bool(FLAGS.print or FLAGS.why or FLAGS.diff is not None or FLAGS.repro)


def show(cfg: "fdl.Config", catalogue: "Catalogue", *, directives: Sequence[str] | None) -> None:
    """Writes what the flags ask of a graph.

    Args:
      cfg: the graph, with nothing wrong in it.
      catalogue: what has a name.
      directives: those that made the graph; None where it comes from a run.

    Raises:
      ConfigError: there is nothing at a path, or no other graph.
    """
    sys.stdout.write("\n".join(_texts(cfg, catalogue, directives)))


def _texts(
    cfg: "fdl.Config", catalogue: "Catalogue", directives: Sequence[str] | None
) -> Iterator[str]:
    if FLAGS.print == "base":
        yield _since_base(cfg, catalogue, directives)
    elif FLAGS.print:
        yield _form(FLAGS.print)(cfg)
    yield from _whys(cfg)
    if FLAGS.diff is not None:
        yield _difference(cfg, catalogue)
    if FLAGS.repro:
        from fidgpt.compose.reproduction import command_for

        yield command_for(cfg, catalogue, directives=directives or (), allowed=FLAGS.allow)


def _whys(cfg: "fdl.Config") -> list[str]:
    """The stories that are asked for; of paths that lead nowhere all are named."""
    from fidgpt.graph import ConfigError
    from fidgpt.graph.errors import raise_all
    from fidgpt.graph.provenance import why_text

    stories: list[str] = []
    mistakes: list[str] = []
    for path in FLAGS.why:
        try:
            stories += [why_text(cfg, one) for one in _paths_of(cfg, path)]
        except ConfigError as error:
            mistakes.append(f"--why={path}: {error}")
    raise_all(mistakes)
    return stories


def _paths_of(cfg: "fdl.Config", path: str) -> list[str]:
    """The path itself, or those of all the places that it names."""
    from fidgpt.graph import find_parameters

    names_many = any(sign in path for sign in "*@:")
    return [place.path for place in find_parameters(cfg, path)] if names_many else [path]


def _form(name: str) -> "Callable[[fdl.Config], str]":
    """What writes a form; each is loaded only where it is asked for."""
    from fidgpt import graph

    match name:
        case "text":
            if not sys.stdout.isatty():
                return graph.outline
            color = "NO_COLOR" not in os.environ
            return functools.partial(graph.outline, defaults=True, color=color)
        case "json":
            return graph.dump
        case "yaml":
            return functools.partial(graph.dump, form="yaml")
        case "svg":
            return lambda cfg: graph.draw(cfg).svg()
        case "html":
            from fidgpt.graph.page import page

            return page
        case "summary":
            return _summary
        case "schedule":
            return _schedule
        case "python":
            from fidgpt.graph.codegen import python

            return python
        case _:
            from fidgpt.graph.outlines import flat, set_lines

            return flat if name == "flat" else set_lines


def _summary(cfg: "fdl.Config") -> str:
    """What a run would cost, on the machine at hand or on that of --hardware."""
    from fidgpt.compose.runs import build_trainer
    from fidgpt.graph import ConfigError
    from fidgpt.train.device import VARIABLE, machine_at_hand, machine_named
    from fidgpt.train.summary_text import summary_text

    trainer = build_trainer(cfg)
    dtype, named = trainer.precision.dtype, os.environ.get(VARIABLE)
    try:
        machine = machine_named(named, dtype) if named else machine_at_hand(trainer.parallel, dtype)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return summary_text(trainer.summary(machine), color=color)


def _schedule(cfg: "fdl.Config") -> str:
    """How the learning rate rises and falls, and what else changes over the run."""
    from fidgpt.compose.runs import build_trainer
    from fidgpt.train.schedule_text import schedules_text

    trainer = build_trainer(cfg)
    return schedules_text(
        trainer.schedule,
        others=trainer.schedules or {},
        curves=trainer.data.curves(trainer.num_steps),
        groups=trainer.parameter_groups(),
        num_steps=trainer.num_steps,
    )


def _since_base(cfg: "fdl.Config", catalogue: "Catalogue", directives: Sequence[str] | None) -> str:
    """What differs from the config that it began with; of a file that knows none, the nearest."""
    from fidgpt.compose.directives import compose
    from fidgpt.compose.reproduction import begun_with, nearest_named
    from fidgpt.compose.spelling import DEFAULT_CONFIG, split_directive
    from fidgpt.graph.difference.comparison import since

    kind = split_directive(directives[0])[0] if directives else ""
    first = f"config:{DEFAULT_CONFIG}"
    if directives and kind == "config":
        first = directives[0]
    elif directives is None or kind in ("config_file", "config_str"):
        first = begun_with(cfg, catalogue) or nearest_named(cfg, catalogue)
    return since(compose([first], catalogue), cfg, name=first)


def _difference(cfg: "fdl.Config", catalogue: "Catalogue") -> str:
    from fidgpt.compose.directives import compose
    from fidgpt.compose.reproduction import directives_from, other_directive
    from fidgpt.graph import ConfigError, ConfigErrors, diff, diff_text, draw

    first = other_directive(FLAGS.diff, catalogue)
    if FLAGS.diff_form == "directives":
        return directives_from(cfg, first, catalogue)
    try:
        other = compose([first], catalogue)
    except ConfigErrors as errors:  # which are told of a directive that nobody typed
        raise ConfigError(f"--diff={FLAGS.diff}: {errors.__cause__}") from errors
    if FLAGS.diff_form == "html":
        from fidgpt.graph.page import page

        return page(cfg, other=other, other_title=FLAGS.diff)
    if FLAGS.diff_form == "patch":
        from fidgpt.graph import dump_patch

        return dump_patch((other, cfg))
    if FLAGS.diff_form == "svg":
        return draw(cfg, since=other).svg()
    return diff_text(diff(other, cfg))


class _List(flags.Flag):
    """`--list`, or `--list=KIND`."""

    def __init__(self) -> None:
        super().__init__(
            parser=flags.ArgumentParser(),
            serializer=flags.ArgumentSerializer(),
            name="list",
            default=None,
            help_string="List what has a name: all, or configs, fiddlers, tags, parts, parts:PATH "
            "(those that fit there), knobs, knobs:PATH (those below).",
            boolean=True,
        )

    def _parse(self, argument: Any) -> str | None:
        words = {"true": "all", True: "all", "false": None, False: None}
        return only(self, words.get(argument, argument))


flags.DEFINE_flag(_List())
flags.DEFINE_enum(
    "completion",
    None,
    ["bash", "zsh", "fish"],
    "Print what makes a shell complete these commands, to be sourced.",
)


def answered() -> bool:
    """Answers what the flags ask; False where they ask nothing and there is work to do.

    Raises:
      ConfigError: what is asked for does not exist.
    """
    if FLAGS.completion:
        from fidgpt.cli.completion import SCRIPTS

        print(SCRIPTS[FLAGS.completion], end="")
        return True
    if FLAGS.list is None:
        return False
    from fidgpt.cli.listing import print_listing

    print_listing(FLAGS.list, FLAGS.config, FLAGS.allow)
    return True
