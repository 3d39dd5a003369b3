"""The forms of --print, --why, --diff and --repro."""

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

import torch

from fidgpt import graph
from fidgpt.cli.app import print_graph
from fidgpt.cli.colors import has_color
from fidgpt.cli.flags import FLAGS
from fidgpt.compose import report, reproduction
from fidgpt.compose.composition import Composition, compose
from fidgpt.compose.directives import split_directive
from fidgpt.data import Batch, Conversations, Tokenizer
from fidgpt.errors import at
from fidgpt.graph import ConfigError, ConfigErrors, holds, outlines
from fidgpt.graph.difference.comparison import since
from fidgpt.graph.docs import description
from fidgpt.graph.expressions import parse_call
from fidgpt.graph.secrets import redacted
from fidgpt.model.wrappers import InFloat8
from fidgpt.plan import Cluster, Plan, Planner, Ranking
from fidgpt.runs import tuning
from fidgpt.runs.building import build_trainer, constraints_of
from fidgpt.runs.directories import name_of_base
from fidgpt.runs.ineffective import without_effect
from fidgpt.train import Trainer, device
from fidgpt.train.estimates.facts import Facts, facts_of
from fidgpt.train.run_directory import print_stderr

if TYPE_CHECKING:
    from rich.text import Text

_ROWS = 4  # of a batch
_BETWEEN = "|"  # tokens
_READ = (None, "text", "flat", "base", "defaults")  # forms for persons, not for programs


def show(composition: Composition) -> None:
    """Write what the flags ask about a composition, with warnings of what would not run.

    Raises:
      ConfigError: there is nothing at a path, or no other graph.
    """
    with naming_directives(composition):
        constraints = constraints_of(composition.catalogue)
        rejected = graph.rejections(composition.resolved, constraints=constraints)
    messages = report.grouped(rejected)
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
            from fidgpt.compose.index_build import schema_text

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
    from fidgpt.train.estimates import summary_text  # late: takes rich

    # Of constraints on the whole run, `show` has warned.
    will_run = form in ("speed", "batch")
    trainer = build_trainer(composition.resolved, composition.catalogue, will_run=will_run)
    if form == "batch":
        return _batch_text(trainer, color=color)
    if form == "speed":
        return summary_text.speed_text(
            tuning.choose(composition, trainer, renew=FLAGS.measure), color=color
        )
    if form == "schedule":
        return summary_text.schedules_text(trainer)
    if form in ("plan", "plan-html"):
        return _planned(composition, trainer, form=form, color=color)
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
    return summary_text.summary_text(trainer, facts, recipe=recipe, color=color)


def _facts(trainer: Trainer) -> tuple[Facts, Cluster, int]:
    """Return the facts of a run, its machine, and over how many devices it splits a batch.

    Raises:
      ConfigError: there is no machine of that name, the mesh does not fit on it, or a pipeline has
        too few micro-batches.
    """
    try:
        machine = _cluster_of(trainer)
        count = trainer.parallel.layout(machine.size).data_size
        return facts_of(trainer, machine), machine, count
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _planned(composition: Composition, trainer: Trainer, *, form: str, color: bool) -> str:
    """Return the plan of a run on its mesh, or on every mesh of the hardware, as text or a page.

    Raises:
      ConfigError: the hardware is unknown, or nothing divides or fits.
    """
    from fidgpt.train.estimates import plan_text  # late: takes rich

    try:
        planner = Planner(trainer, _cluster_of(trainer))
        mesh = trainer.parallel.mesh
        is_named = any(size == -1 and name != "replicate" for name, size in mesh.sizes.items())
        has_mesh = mesh.size > 1 or is_named or planner.cluster.size == 1
        ranking = Ranking([_plan(planner, trainer)], 1, 1) if has_mesh else planner.search()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    start = reproduction.train_command(composition.directives, allowed=FLAGS.allow)
    if form == "plan-html":
        return plan_text.page(ranking, planner, start, title=_title(composition))
    if has_mesh:
        return plan_text.plan_text(planner, ranking.plans[0], price=FLAGS.price, color=color)
    return plan_text.plans_text(ranking, planner, start=start, price=FLAGS.price, color=color)


def _cluster_of(trainer: Trainer) -> Cluster:
    """Return the devices that are named or at hand.

    Raises:
      ValueError: there are none of that name, or they do not multiply as the config says.
    """
    dtype = trainer.precision.dtype
    if name := os.environ.get(device.VARIABLE):
        named = device.machine_named(name, dtype)
        has_float8 = any(isinstance(module, InFloat8) for module in trainer.model.modules())
        if has_float8 and "float8" not in named.device.flops:
            raise ValueError(f"{named.device.title} has no products in float8: omit use_float8.")
        return named
    return device.cluster_at_hand(trainer.parallel, dtype)


def _plan(planner: Planner, trainer: Trainer) -> Plan:
    own, number = trainer.parallel.mesh, planner.cluster.size
    copies, left = divmod(number, own.size)
    if copies > 1 and not left and own.sizes.get("replicate") == 1 and -1 not in own.sizes.values():
        print_stderr(
            f"warning: {number} devices hold {copies} copies of the mesh of {own}: "
            f"add replicate={copies}."
        )
        own = replace(own, replicate=copies)
    mesh = own.over(number)
    planner.check(mesh)
    return planner.plan(planner.setting(mesh))


def _batch_text(trainer: Trainer, *, color: bool) -> str:
    """Return the first rows of the first batch, as runs of tokens that count in the loss or not.

    Args:
      trainer: whose text is prepared if it is not.
      color: whether to use terminal styles.
    """
    from rich.console import Console  # late: most forms need none of it

    trainer.stream.prepare()
    rows = trainer.stream.batch(0)
    if rows.tokens.shape[1] == 2 * (trainer.seq_len + 1):  # pairs
        rows = rows.map(lambda x: x.reshape(-1, trainer.seq_len + 1))
    rows = rows.map(lambda x: x[:_ROWS])
    console = Console(
        file=io.StringIO(), width=120, force_terminal=color, no_color=not color, highlight=False
    )
    with console.capture() as capture:
        for line in _rows_text(trainer, rows):
            console.print(line, soft_wrap=True)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _rows_text(trainer: Trainer, rows: Batch) -> "Iterator[Text]":
    from rich.text import Text

    tokenizer, ctx = trainer.stream.tokenizer, trainer.model.layout(rows.tokens)
    names = {number: name for name, number in tokenizer.special_ids().items()}
    positions = ctx.positions.expand_as(rows.tokens).tolist()
    documents = torch.zeros_like(rows.tokens) if ctx.documents is None else ctx.documents
    columns: Any = (rows.tokens.tolist(), rows.mask.tolist(), positions, documents.tolist())
    for number, row in enumerate(zip(*columns, strict=True)):
        tokens, mask, *_ = row
        mask[0] = False  # nothing predicts it
        yield Text(
            f"row {number}: {len(tokens):,} tokens, of which {sum(mask):,} count in the loss"
        )
        padding = len([*takewhile(tokenizer.end_of_text.__eq__, reversed(tokens))]) - 1
        items = [*zip(*row, strict=True)][: len(tokens) - max(0, padding)]
        for (document, counted), group in groupby(items, key=lambda item: (item[3], item[1])):
            run = [*group]
            places = f"{run[0][2]}" if len(run) == 1 else f"{run[0][2]}-{run[-1][2]}"
            line = Text(f"  document {document:<3} position {places:<11} ")
            line.append("counted " if counted else "read    ", "bold green" if counted else "dim")
            shown = [_token_text(token, tokenizer, names) for token, *_ in run]
            line.append(_BETWEEN.join(shown), "green" if counted else "dim")
            yield line
        if padding > 0:
            yield Text(f"  padding: {padding} times {names[tokenizer.end_of_text]}", "dim")


def _token_text(token: int, tokenizer: Tokenizer, names: dict[int, str]) -> str:
    return names.get(token) or repr(tokenizer.token_values()[token].decode(errors="replace"))[1:-1]


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
