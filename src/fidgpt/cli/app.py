"""What every command shares: flags, logging and error messages."""

import atexit
import difflib
import errno
import gc
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from absl import app, flags

from fidgpt import __version__
from fidgpt.cli import colors
from fidgpt.errors import ConfigError, is_user_error

MISTAKE = 2  # exit status for what the user can mend
INTERRUPTED = 130  # as in a shell
FLAGS = flags.FLAGS
_NO_READER = (errno.EPIPE, errno.EIO)  # as after `head`, and where a terminal is gone
_PATIENCE_SECONDS = 20
Main = Callable[[list[str]], int | None]

app.define_help_flags()


class _Help(flags.BooleanFlag):
    """Shows help once all flags are read, since one of them chooses the config."""

    def __init__(self) -> None:
        super().__init__("help", False, "Show this, and what can be set in the chosen config.", "?")
        self.allow_override = True


flags.DEFINE_flag(_Help())
flags.DEFINE_bool("version", False, "Print the version of fidgpt.")
flags.DEFINE_bool("debug", False, "Show where in the code an error was found.")
flags.DEFINE_multi_string(
    "allow", [], "A package whose functions and classes a saved config may name."
)
flags.DEFINE_multi_string(
    "trust", [], "A place that a saved config may send to or run code from; remembered here."
)


class _PathParser(flags.ArgumentParser):
    """Reads a path, in which `~` is the home directory, as a shell does where no `=` precedes."""

    def parse(self, argument: str) -> str:
        return os.path.expanduser(argument)


def define_path(name: str, help: str, *, allow_override: bool = False) -> None:
    """Define a flag that names a file or a directory."""
    parser, serializer = _PathParser(), flags.ArgumentSerializer()
    flag = flags.Flag(parser, serializer, name, None, help, allow_override=allow_override)
    flags.DEFINE_flag(flag)


def refuse_unused(owners: Mapping[tuple[str, ...], Sequence[str]]) -> None:
    """Refuse flags that are given and change nothing.

    Args:
      owners: names of flags, by the flags of which they need one.

    Raises:
      ConfigError: a flag lacks the others.
    """
    for others, names in owners.items():
        unused = [name for name in names if FLAGS[name].present]
        if unused and not any(FLAGS[other].value for other in others):
            raise ConfigError(f"--{unused[0]} has no effect without --{' or --'.join(others)}.")


def run(main: Main, *, takes_directives: bool = False) -> None:
    """Parse the flags, call `main` with the other arguments, and exit.

    A user's error ends in its message and status 2, without a traceback unless --debug.

    Args:
      main: what the command does.
      takes_directives: whether words without a flag are directives.
    """
    # Or torch prints stacks of its C++ code where the connection to another process closes.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    atexit.register(gc.freeze)  # or Python collects garbage in all of torch before it ends
    if isinstance(sys.stdout, io.TextIOWrapper):  # no text of a config shall stop a print
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (
        SafeStream(sys.stdout),
        SafeStream(sys.stderr, may_fail=True, styles=colors.MESSAGES),
    )
    parse = partial(parse_flags, takes_directives=takes_directives)
    app.run(lambda arguments: sys.exit(call(main, arguments[1:])), flags_parser=parse)


class SafeStream:
    """A stream for messages, without secrets that a config names, in whose place are references.

    Args:
      stream: where to write.
      may_fail: drop what cannot be written, as on a full disk: warnings shall stop no run.
      styles: of parts of messages, where the stream shows colors.
    """

    def __init__(
        self, stream: Any, *, may_fail: bool = False, styles: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._stream = stream
        self._styles = styles if colors.has_color(stream) else ()
        self._failing = (OSError,) if may_fail else ()

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        secrets = sys.modules.get("fidgpt.graph.secrets")
        shown = secrets.redacted(text) if secrets else text
        if self._styles and text.strip() and "\x1b" not in text:
            shown = colors.colored(shown, self._styles)
        self.write_unredacted(shown)
        return len(text)

    def write_unredacted(self, text: str) -> None:
        """Write a text made of a graph: it holds references, and like words are no secrets."""
        with suppress(*self._failing):
            self._stream.write(text)

    def flush(self) -> None:
        """Write out what was printed."""
        with suppress(*self._failing):
            self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_graph(text: str, *, is_read: bool = False) -> None:
    """Print a text that is made from a graph alone; none of its letters may change.

    Args:
      text: what to print.
      is_read: whether a person reads it, for whom a terminal colors it.
    """
    if is_read and colors.has_color(sys.stdout):
        text = colors.colored(text, colors.GRAPHS)
    getattr(sys.stdout, "write_unredacted", sys.stdout.write)(text)


def fail(message: str) -> None:
    """Print an error on standard error, if that can be written."""
    with suppress(OSError):
        print("error:", message, file=sys.stderr)


def call(main: Main, arguments: list[str]) -> int:
    """Call the main function of a command, and return its exit status."""
    status = 0
    try:
        status = _status(main, arguments)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NO_READER or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit fails as well
    return status


def _status(main: Main, arguments: list[str]) -> int:
    try:
        if FLAGS.help:
            from fidgpt.cli.listing import print_help

            print_help(FLAGS, sys.modules[main.__module__].__doc__ or "")
            return 0
        if FLAGS.version:
            print(f"fidgpt {__version__}")
            return 0
        if FLAGS.trust or FLAGS.allow:
            from fidgpt.files import trust

            trust([*FLAGS.trust, *(f"--allow={package}" for package in FLAGS.allow)])
        return main(arguments) or 0
    except KeyboardInterrupt:
        fail("interrupted.")
        return INTERRUPTED
    except Exception as error:
        if is_user_error(error):
            message = str(error)
        elif isinstance(error, OSError) and error.filename is not None:
            message = f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}."
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
            message = "no space is left on the disk."
        else:
            raise
        if FLAGS.debug:
            traceback.print_exc()
        if "RANK" in os.environ:
            _fail_once(message, is_config=isinstance(error, ConfigError))
        else:
            fail(message)
        return MISTAKE


def _fail_once(message: str, *, is_config: bool) -> None:
    """Print an error of a run of several processes, on one process of each machine.

    Another one waits, because torchrun ends all once one ends, and the first has to have printed.
    """
    from fidgpt.processes import heartbeat

    # The first one has the same error of a config.
    if not heartbeat.has_met() and is_config and int(os.environ.get("LOCAL_RANK", "0")):
        time.sleep(_PATIENCE_SECONDS)
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return
        # torchrun has not ended this process, so that the first one has not printed.
    heartbeat.report(partial(fail, message))


def parse_flags(arguments: Sequence[str], *, takes_directives: bool = False) -> list[str]:
    """Parse a command line, and return the words that are no flags; exit if a flag is wrong.

    Where words without a flag are directives, `sys.argv`, which a run records, has them as flags.
    """
    if takes_directives:
        arguments = _with_directives(arguments)
    try:
        return FLAGS(arguments)
    except flags.UnrecognizedFlagError as error:
        fail(_unknown_flag(error.flagname))
    except flags.Error as error:
        fail(str(error).removeprefix("flag "))
    except SystemExit:  # absl ends --helpfull with 1, as if to ask were an error
        sys.exit(0)
    sys.exit(MISTAKE)


def _with_directives(arguments: Sequence[str]) -> list[str]:
    from fidgpt.cli import words

    program, *typed = arguments
    try:
        translated = words.with_flags(typed, FLAGS)
    except ValueError as error:  # a ConfigError
        fail(str(error))
        sys.exit(MISTAKE)
    if {"--print", "--dry_run"} & {word.partition("=")[0] for word in typed}:
        for line in words.meanings(typed, translated):
            print(line, file=sys.stderr)
    sys.argv = [program, *translated]
    return sys.argv


def _unknown_flag(name: str) -> str:
    near = "".join(f" Did you mean --{flag}?" for flag in difflib.get_close_matches(name, FLAGS, 1))
    if "trials" in name and "search" in FLAGS:
        near = " A number of trials is that of a sampler: --search=tpe:50."
    example = "Config changes are words without dashes, such as make_small num_steps=200."
    hint = f"\n  {example}" if "config" in FLAGS else ""
    return f"there is no flag --{name}.{near}{hint}"
