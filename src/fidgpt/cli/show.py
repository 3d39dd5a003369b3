"""The forms of --print, --why, --diff and --repro."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from fidgpt import graph
from fidgpt.cli.app import print_graph
from fidgpt.cli.colors import has_color
from fidgpt.cli.flags import FLAGS
from fidgpt.compose import attribution, report, reproduction
from fidgpt.compose.composition import Composition, compose
from fidgpt.compose.directives import split_directive
from fidgpt.data import Conversations
from fidgpt.errors import at
from fidgpt.graph import ConfigError, ConfigErrors, holds, outlines
from fidgpt.graph.difference.comparison import since
from fidgpt.graph.docs import description
from fidgpt.graph.expressions import parse_call
from fidgpt.graph.secrets import redacted
from fidgpt.plan import Cluster
from fidgpt.runs import tuning
from fidgpt.runs.building import build_trainer, constraints_of
from fidgpt.runs.directories import name_of_base
from fidgpt.runs.ineffective import without_effect
from fidgpt.train import Trainer, device
from fidgpt.train.estimates.facts import Facts, facts_of

_READ = (None, "text", "flat", "base", "defaults")  # forms for persons, not for programs


def is_asked() -> bool:
    """Return whether a flag asks to be shown something."""
    return bool(FLAGS.print or FLAGS.why or FLAGS.diff is not None or FLAGS.repro)


def show(composition: Composition) -> None:
    """Write what the flags ask about a composition, with warnings of what would not run.

    Raises:
      ConfigError: there is nothing at a path, or no other graph.
    """
    with naming_directives(composition):
        constraints = constraints_of(composition.catalogue)
        rejected = graph.rejections(composition.resolved, constraints=constraints)
    messages = attribution.grouped(rejected)
    try:
        text = "\n".join(_texts(composition))
    except ConfigError as error:
        messages = [message for message in messages if message not in str(error)]
        raise
    finally:
        warn([f"this would not run: {message}" for message in messages])
        warn([*reported(composition).warnings, *without_effect(composition)])
    print_graph(text, is_read=FLAGS.print in _READ)


def naming_directives(composition: Composition) -> AbstractContextManager[None]:
    """Name the directives behind errors found inside."""
    return report.naming_directives(composition, allow_noop=FLAGS.allow_noop)


def reported(composition: Composition) -> report.Report:
    """Return what the directives changed, and warnings."""
    return report.report(composition, verbose=FLAGS.verbose, allow_noop=FLAGS.allow_noop)


def is_main() -> bool:
    """Return whether this is the main process of a run, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def echo(lines: Iterable[str]) -> None:
    """Print lines on standard error; of the processes of a run, the main one does."""
    for line in lines if is_main() else ():
        print(line, file=sys.stderr)


def warn(lines: Iterable[str]) -> None:
    """Print warnings on standard error, as `echo` does."""
    echo(f"warning: {line}" for line in lines)


def _texts(composition: Composition) -> Iterator[str]:
    if FLAGS.print:
        yield _printed(composition, FLAGS.print)
    yield from _whys(composition)
    if FLAGS.diff is not None:
        yield _difference(composition)
    if FLAGS.repro:
        yield reproduction.command_for(
            composition.config,
            composition.catalogue,
            directives=composition.directives,
            allowed=FLAGS.allow,
        )


def _whys(composition: Composition) -> Iterator[str]:
    """Yield the provenance of all paths that are asked for."""
    for path in FLAGS.why:
        with at(f"--why={path}"):
            matches_many = any(sign in path for sign in "*@:")
            refs = graph.find_parameters(composition.config, path) if matches_many else []
            yield from map(composition.why, [ref.path for ref in refs] if matches_many else [path])


def _printed(composition: Composition, form: str) -> str:
    """Return a config in a form; what a form needs is imported only where it is asked for."""
    is_terminal = sys.stdout.isatty()
    color = has_color(sys.stdout)
    match form:
        case "text":
            return graph.outline(composition.resolved, defaults=is_terminal, color=color)
        case "json" | "yaml":
            return graph.dump(composition.resolved, form=form)
        case "svg":
            return graph.draw(composition.config).svg()
        case "html":
            return _page(composition)
        case "python":
            from fidgpt.graph.codegen import python

            return python(composition.config)
        case "schema":
            from fidgpt.compose.schema import schema_text

            return schema_text(composition.resolved, composition.catalogue)
        case "base":
            first = reproduction.base_of(composition)
            base = compose([first], composition.catalogue).config
            return since(base, composition.resolved, name=first)
        case "flat" | "defaults":
            return (outlines.flat if form == "flat" else outlines.set_lines)(composition.resolved)
        case _:
            return redacted(_of_trainer(composition, form, color))  # which was built with secrets


def _title(composition: Composition) -> str:
    """Return the name of a config, and what was changed of it."""
    first, *others = composition.directives
    return " ".join([name_of_base([first]), *(split_directive(text)[1] for text in others)])


def _page(composition: Composition) -> str:
    """Return a config as a page; one that would not run, without sizes and memory."""
    from fidgpt.graph.page import page
    from fidgpt.runs.part_sizes import part_sizes
    from fidgpt.train.estimates.summary_text import memory_rows

    sizes, facts, resolved = {}, [], composition.resolved
    with contextlib.suppress(ConfigError):
        trainer = build_trainer(resolved, composition.catalogue, will_run=False)
        sizes = part_sizes(resolved.bound.model, trainer.model, path="model")
        facts = memory_rows(_facts(trainer)[0])
    return page(composition.config, title=_title(composition), sizes=sizes, facts=facts)


def _of_trainer(composition: Composition, form: str, color: bool) -> str:
    """Return what a run reads or would cost, or how its learning rate and others change."""
    from fidgpt.train.estimates.summary_text import (  # late: takes rich
        schedules_text,
        speed_text,
        summary_text,
    )

    # Of constraints on the whole run, `show` has warned.
    will_run = form in ("speed", "batch")
    trainer = build_trainer(composition.resolved, composition.catalogue, will_run=will_run)
    if form == "batch":
        from fidgpt.cli.batch import batch_text

        return batch_text(trainer, color=color)
    if form == "speed":
        return speed_text(tuning.choose(composition, trainer, renew=FLAGS.measure), color=color)
    if form == "schedule":
        return schedules_text(trainer)
    if form in ("plan", "plan-html"):
        settings = {"form": form, "title": _title(composition), "color": color}
        from fidgpt.cli.plan import planned  # late: takes rich

        return planned(composition, trainer, price=FLAGS.price, **settings)
    if holds(composition.resolved.root, Conversations):
        trainer.stream.prepare()  # which prints the share of the tokens that count
    facts, machine, count = _facts(trainer)
    name = os.environ.get(device.VARIABLE)
    if name and trainer.batch_size < count:
        parts = "replicas and shards on" if count < machine.size else "devices of"
        too_small = f"batch_size={trainer.batch_size} is too small for the {count} {parts} {name}"
        warn([f"this would not run: {too_small}: choose {count} or more."])
    base = reproduction.base_of(composition)
    kind, rest = split_directive(base)
    function = composition.catalogue.find(kind, parse_call(rest).name) if kind == "config" else None
    recipe = description(function)
    if recipe and composition.directives[1:]:
        recipe = f"Of {base}, which was changed: {recipe}"
    return summary_text(trainer, facts, recipe=recipe, color=color)


def _facts(trainer: Trainer) -> tuple[Facts, Cluster, int]:
    """Return the facts of a run, its machine, and over how many devices it splits a batch.

    Raises:
      ConfigError: there is no machine of that name, the mesh does not fit on it, or a pipeline has
        too few micro-batches.
    """
    from fidgpt.cli.plan import cluster_of  # late: takes rich

    try:
        machine = cluster_of(trainer)
        count = trainer.parallel.layout(machine.size).data_size
        return facts_of(trainer, machine), machine, count
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _difference(composition: Composition) -> str:
    first = reproduction.directive_for(FLAGS.diff, composition.catalogue)
    if FLAGS.diff_form == "directives":
        return reproduction.directives_from(composition.config, first, composition.catalogue)
    try:
        other = compose([first], composition.catalogue).config
    except ConfigErrors as errors:  # about a directive that the user did not type
        raise ConfigError(f"--diff={FLAGS.diff}: {errors.__cause__}") from errors
    match FLAGS.diff_form:
        case "html":
            from fidgpt.graph.page import page

            title = _title(composition)
            return page(composition.config, other=other, title=title, other_title=FLAGS.diff)
        case "patch":
            return graph.dump_patch((other, composition.config))
        case _:
            changes = graph.diff(other, composition.resolved)
            head = f"from {FLAGS.diff} to this config:\n" if changes else ""
            return head + graph.diff_text(changes)
