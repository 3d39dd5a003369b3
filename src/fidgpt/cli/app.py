"""What every command shares: flags, logging and error messages."""

import atexit
import errno
import gc
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from absl import app, flags

MISTAKE = 2  # exit status for what the user can mend
INTERRUPTED = 130  # as a shell says it
FLAGS = flags.FLAGS
_NOBODY_READS = (errno.EPIPE, errno.EIO)  # as after `head`, and where a terminal is gone
_EXAMPLE = "--config=fiddler:make_small --config=set:num_steps=200"

app.define_help_flags()


class _Help(flags.BooleanFlag):
    """Shows help once all flags are read, since one of them says of which config."""

    def __init__(self) -> None:
        super().__init__("help", False, "Show this, and what the chosen config can be told.", "?")
        self.allow_override = True


flags.DEFINE_flag(_Help())
flags.DEFINE_bool("debug", False, "Show where in the code a mistake was found.")
flags.DEFINE_multi_string(
    "allow", [], "A package of your own whose functions and classes a saved config may name."
)


class OptionalText(flags.Flag):
    """A flag that may stand alone (`--print`) or have a value (`--print=json`)."""

    def __init__(self, name: str, *, alone: str, choices: Sequence[str], help_text: str) -> None:
        super().__init__(
            parser=flags.EnumParser([*choices, "true", "false"]),
            serializer=flags.ArgumentSerializer(),
            name=name,
            default=None,
            help_string=help_text,
            boolean=True,
        )
        self._alone = alone

    def _parse(self, argument: str | None) -> str | None:
        value = super()._parse(argument)
        value = {"true": self._alone, "false": None}.get(value, value) if value else None
        return only(self, value)


def only(flag: flags.Flag, value: str | None) -> str | None:
    """A value of a flag that may stand alone, unless it has another one already.

    Raises:
      IllegalFlagValueError: it has.
    """
    if flag.present and value is not None and flag.value not in (None, value):
        raise flags.IllegalFlagValueError(
            f"flag --{flag.name}={value}: already defined as {flag.value}"
        )
    return value


def run(main: Callable[[list[str]], int | None]) -> None:
    """Parses the flags, calls `main` with what is no flag, and exits.

    A mistake of the user's ends in its message and status 2, without a traceback unless --debug.
    """
    if __doc__ is None:
        fail("Python runs with -OO, without the texts that flags and tags need: take -O instead.")
        sys.exit(MISTAKE)
    atexit.register(gc.freeze)  # or Python looks for garbage in all of torch before it ends
    if isinstance(sys.stdout, io.TextIOWrapper):  # no text of a config shall stop a print
        sys.stdout.reconfigure(errors="backslashreplace")
    app.run(lambda arguments: sys.exit(_guarded(main, arguments[1:])), flags_parser=_parse)


def fail(message: str) -> None:
    """Says what is wrong on standard error, if that is there to be read."""
    with suppress(OSError):
        print(f"error: {message}", file=sys.stderr)


def _guarded(main: Callable[[list[str]], int | None], arguments: list[str]) -> int:
    status = 0
    try:
        status = _status(main, arguments)
    except OSError:
        if (lost := _flush("\n")) is None:  # an empty line can be printed: it was not about that
            raise
    else:
        lost = _flush()
    if lost is None or lost.errno in _NOBODY_READS or status != 0:
        return status
    fail(f"standard output cannot be written ({lost.strerror}).")
    return MISTAKE


def _flush(more: str = "") -> OSError | None:
    """Writes out what was printed, and more; returns why it cannot be, and then forgets it."""
    try:
        sys.stdout.write(more)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit fails as well
        return error
    return None


def _status(main: Callable[[list[str]], int | None], arguments: list[str]) -> int:
    try:
        return (_help if FLAGS.help else main)(arguments) or 0
    except KeyboardInterrupt:
        fail("interrupted.")
        return INTERRUPTED
    except Exception as error:
        from fidgpt.compose.catalogue import user_errors  # late: what knows no model waits for none

        if not isinstance(error, user_errors()):
            raise
        if FLAGS.debug:
            traceback.print_exc()
        fail(str(error))
        return MISTAKE


def _parse(arguments: Sequence[str]) -> list[str]:
    overrules_file = any(argument.lstrip("-").startswith("flagfile") for argument in arguments)
    for name in FLAGS:
        if not FLAGS[name].boolean:  # what was turned on may be turned off again
            # Or the first of two values is lost in silence.
            FLAGS[name].allow_overwrite = overrules_file
    try:
        return FLAGS(list(arguments))
    except flags.Error as error:
        message = str(error)
        if isinstance(error, flags.UnrecognizedFlagError) and "config" in FLAGS:
            message += f"\n  What changes a config is said in --config, such as {_EXAMPLE}"
        elif "already defined" in message:
            message += "\n  It takes one value: leave one of the two out."
        fail(message)
        sys.exit(MISTAKE)
    except SystemExit:  # absl ends --helpfull with 1, as if to ask were a mistake
        sys.exit(0)


def _help(_: list[str]) -> None:
    from fidgpt.cli.listing import print_help  # late: most runs need no help

    print_help(FLAGS)
