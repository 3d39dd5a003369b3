"""The forms of --print, --why, --diff and --repro."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from fidgpt.cli.flags import FLAGS

if TYPE_CHECKING:
    from fidgpt.compose.composition import Composition

flags.DEFINE_multi_string(
    "why", [], "Show what set the value at this path, what set it before, and what it inherits."
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
    """Return whether a flag asks to be shown something."""
    return bool(FLAGS.print or FLAGS.why or FLAGS.diff is not None or FLAGS.repro)


def show(made: "Composition") -> None:
    """Write what the flags ask about a composition.

    Raises:
      ConfigError: there is nothing at a path, or no other graph.
    """
    sys.stdout.write("\n".join(_texts(made)))


def _texts(made: "Composition") -> Iterator[str]:
    if FLAGS.print:
        yield _printed(made, FLAGS.print)
    yield from _whys(made)
    if FLAGS.diff is not None:
        yield _difference(made)
    if FLAGS.repro:
        from fidgpt.compose.reproduction import command_for

        known = made.directives
        yield command_for(made.config, made.catalogue, directives=known, allowed=FLAGS.allow)


def _whys(made: "Composition") -> list[str]:
    """Return the provenance of all paths that are asked for; report all that do not exist."""
    from fidgpt import graph
    from fidgpt.graph.errors import raise_all

    texts: list[str] = []
    errors: list[str] = []
    for path in FLAGS.why:
        try:
            matches_many = any(sign in path for sign in "*@:")
            refs = graph.find_parameters(made.config, path) if matches_many else []
            texts += map(made.why, [ref.path for ref in refs] if matches_many else [path])
        except graph.ConfigError as error:
            errors.append(f"--why={path}: {error}")
    raise_all(errors)
    return texts


def _printed(made: "Composition", form: str) -> str:
    """Return a config in a form; what a form needs is imported only where it is asked for."""
    from fidgpt import graph

    is_terminal = sys.stdout.isatty()
    color = is_terminal and "NO_COLOR" not in os.environ
    match form:
        case "text":
            return graph.outline(made.resolved, defaults=is_terminal, color=color)
        case "json" | "yaml":
            return graph.dump(made.resolved, form=form)
        case "svg":
            return graph.draw(made.config).svg()
        case "html":
            from fidgpt.graph.page import page

            return page(made.config)
        case "python":
            from fidgpt.graph.codegen import python

            return python(made.config)
        case "base":
            from fidgpt.compose.composition import compose
            from fidgpt.compose.reproduction import base_of
            from fidgpt.graph.difference.comparison import since

            first = base_of(made)
            base = compose([first], made.catalogue).config
            return since(base, made.resolved, name=first)
        case "flat" | "defaults":
            from fidgpt.graph.outlines import flat, set_lines

            return (flat if form == "flat" else set_lines)(made.resolved)
        case _:
            return _of_trainer(made, form, color)


def _of_trainer(made: "Composition", form: str, color: bool) -> str:
    """Return what a run would cost on a machine, or how its learning rate and others change."""
    from fidgpt.compose.runs import build_trainer
    from fidgpt.graph import ConfigError
    from fidgpt.train import device
    from fidgpt.train.summary_text import schedules_text, summary_text

    trainer = build_trainer(made.resolved)
    if form == "schedule":
        return schedules_text(
            trainer.schedule,
            others=trainer.schedules or {},
            curves=trainer.data.curves(trainer.num_steps),
            groups=trainer.parameter_groups(),
            num_steps=trainer.num_steps,
        )
    dtype, name = trainer.precision.dtype, os.environ.get(device.VARIABLE)
    try:
        machine = (
            device.machine_named(name, dtype)
            if name
            else device.machine_at_hand(trainer.parallel, dtype)
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return summary_text(trainer.summary(machine), color=color)


def _difference(made: "Composition") -> str:
    from fidgpt import graph
    from fidgpt.compose.composition import compose
    from fidgpt.compose.reproduction import directive_for, directives_from

    first = directive_for(FLAGS.diff, made.catalogue)
    if FLAGS.diff_form == "directives":
        return directives_from(made.config, first, made.catalogue)
    try:
        other = compose([first], made.catalogue).config
    except graph.ConfigErrors as errors:  # about a directive that the user did not type
        raise graph.ConfigError(f"--diff={FLAGS.diff}: {errors.__cause__}") from errors
    match FLAGS.diff_form:
        case "html":
            from fidgpt.graph.page import page

            return page(made.config, other=other, other_title=FLAGS.diff)
        case "patch":
            return graph.dump_patch((other, made.config))
        case "svg":
            return graph.draw(made.config, since=other).svg()
        case _:
            return graph.diff_text(graph.diff(other, made.resolved))
