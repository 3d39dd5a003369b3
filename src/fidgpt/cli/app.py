"""What every command shares: flags, logging and error messages."""

import atexit
import difflib
import errno
import gc
import io
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from absl import app, flags

MISTAKE = 2  # exit status for what the user can mend
INTERRUPTED = 130  # as in a shell
FLAGS = flags.FLAGS
_REFUSALS = (  # that any call may meet, whose files are another's, or on a failing disk
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ESTALE),
    *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO),
)
_NO_READER = (errno.EPIPE, errno.EIO)  # as after `head`, and where a terminal is gone
_PATIENCE_SECONDS = 20
_LONGEST_NAME, _LONGEST_LINE, _LONGEST_END = 40, 8_000, 400  # characters
_MOST_FILES, _LARGEST_FILE = 30, 1 << 20  # of --flagfile, and bytes
_EXAMPLE = "--config=fiddler:make_small --config=set:num_steps=200"
Main = Callable[[list[str]], int | None]

app.define_help_flags()


class _Help(flags.BooleanFlag):
    """Shows help once all flags are read, since one of them chooses the config."""

    def __init__(self) -> None:
        super().__init__("help", False, "Show this, and what can be set in the chosen config.", "?")
        self.allow_override = True


flags.DEFINE_flag(_Help())
flags.DEFINE_bool("debug", False, "Show where in the code an error was found.")
flags.DEFINE_multi_string(
    "allow", [], "A package whose functions and classes a saved config may name."
)
flags.DEFINE_multi_string(
    "trust", [], "A place that a saved config may send to or run code from; remembered here."
)


def run(main: Main) -> None:
    """Parse the flags, call `main` with the other arguments, and exit.

    A user's error ends in its message and status 2, without a traceback unless --debug.
    """
    if __doc__ is None:
        fail("Python -OO strips the docstrings that flags and tags need: use -O instead.")
        sys.exit(MISTAKE)
    _open_streams()
    try:
        os.getcwd()
    except FileNotFoundError:  # without which MKL does not load either
        fail("the working directory was removed: change to another one.")
        sys.exit(MISTAKE)
    # Or torch prints stacks of its C++ code where the connection to another process closes.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    atexit.register(gc.freeze)  # or Python collects garbage in all of torch before it ends
    if isinstance(sys.stdout, io.TextIOWrapper):  # no text of a config shall stop a print
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = SafeStream(sys.stdout), SafeStream(sys.stderr, may_fail=True)
    app.run(lambda arguments: sys.exit(call(main, arguments[1:])), flags_parser=parse_flags)


def _open_streams() -> None:
    """Let what is printed go nowhere where whoever started this has closed a stream.

    Else the next file that is opened takes its number, and gets what libraries print.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


class SafeStream:
    """A stream for messages, without secrets that a config names, in whose place are references.

    On a terminal, control characters become escapes, whatever a text holds. Left are line breaks,
    colors, and how a progress display moves the cursor; nothing that sets a title, fills the
    clipboard or asks the terminal for an answer.

    Args:
      stream: where to write.
      may_fail: drop what cannot be written, as on a full disk: warnings shall stop no run.
    """

    _UNSAFE = re.compile(
        r"\x1b(?!\[[\d;]*[mAK]|\[\?25[hl])|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
        r"|[\u202a-\u202e\u2066-\u2069]"  # these reverse the order of letters
    )

    def __init__(self, stream: Any, *, may_fail: bool = False) -> None:
        self._stream = stream
        self._failing = (OSError,) if may_fail else ()

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        secrets = sys.modules.get("fidgpt.graph.secrets")
        self.write_unredacted(secrets.redacted(text) if secrets else text)
        return len(text)

    def write_unredacted(self, text: str) -> None:
        """Write a text made of a graph: it holds references, and like words are no secrets."""
        if self._stream.isatty():
            text = self._UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)
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


def print_graph(text: str) -> None:
    """Print a text that is made of a graph alone, of which no letter may change."""
    getattr(sys.stdout, "write_unredacted", sys.stdout.write)(text)


def fail(message: str) -> None:
    """Print an error on standard error, if that can be written; of an endless line, both ends."""
    lines = (
        one if len(one) <= _LONGEST_LINE else f"{one[:_LONGEST_END]} ... {one[-_LONGEST_END:]}"
        for one in message.split("\n")
    )
    with suppress(OSError):
        print("error:", "\n".join(lines), file=sys.stderr)


def call(main: Main, arguments: list[str]) -> int:
    """Call the main function of a command, and return its exit status."""
    status = 0
    try:
        status = _status(main, arguments)
    except OSError:
        if (lost := _flush("\n")) is None:  # an empty line can be printed: it was something else
            raise
    else:
        lost = _flush()
    if lost is None or lost.errno in _NO_READER or status != 0:
        return status
    fail(f"standard output cannot be written ({lost.strerror}).")
    return MISTAKE


def _flush(more: str = "") -> OSError | None:
    """Write out what was printed, and more; return why that failed, and drop it then."""
    try:
        sys.stdout.write(more)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit fails as well
        return error
    return None


def _status(main: Main, arguments: list[str]) -> int:
    try:
        if FLAGS.help:
            from fidgpt.cli.listing import print_help

            print_help(FLAGS)
            return 0
        if FLAGS.trust or FLAGS.allow:
            from fidgpt.files import trust

            trust([*FLAGS.trust, *(f"--allow={one}" for one in FLAGS.allow)])
        return main(arguments) or 0
    except KeyboardInterrupt:
        fail("interrupted.")
        return INTERRUPTED
    except Exception as error:
        from fidgpt.graph.errors import ConfigError, is_user_error  # late: takes Fiddle

        if (message := str(error) if is_user_error(error) else _of_machine(error)) is None:
            raise
        if FLAGS.debug:
            traceback.print_exc()
        if "RANK" in os.environ:
            _fail_once(message, is_config=isinstance(error, ConfigError))
        else:
            fail(message)
        return MISTAKE


def _of_machine(error: Exception) -> str | None:
    """Return a message for a file that this machine does not let anyone use; None for others."""
    if not isinstance(error, OSError) or error.filename is None or error.errno not in _REFUSALS:
        return None
    return f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}."


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


def _number_reader(parser: flags.IntegerParser | flags.FloatParser) -> Callable[[str], Any]:
    """Return what reads the number of a flag, in all the forms that a config takes."""
    kind = int if isinstance(parser, flags.IntegerParser) else float

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            from fidgpt.graph.values import read_value  # late: takes Fiddle

            return read_value(text, kind)

    return read


def parse_flags(arguments: Sequence[str]) -> list[str]:
    """Parse a command line, and return what is not a flag; exit if a flag is wrong."""
    overrides_file = any(argument.lstrip("-").startswith("flagfile") for argument in arguments)
    for name in FLAGS:
        if not FLAGS[name].boolean:  # what was turned on may be turned off again
            FLAGS[name].allow_overwrite = overrides_file  # or the first of two values is lost
        if isinstance(parser := FLAGS[name].parser, flags.IntegerParser | flags.FloatParser):
            vars(parser)["convert"] = _number_reader(parser)
    try:
        # Known ones only, since absl compares others letter by letter, however long they are.
        words = FLAGS(_with_files(arguments), known_only=True)
    except flags.Error as error:
        message = str(error).removeprefix("flag ")
        if "already defined" in message:
            message += "\n  It takes one value: remove one of the two."
        fail(message)
        sys.exit(MISTAKE)
    except SystemExit:  # absl ends --helpfull with 1, as if to ask were an error
        sys.exit(0)
    end = words.index("--") if "--" in words else len(words)
    for word in words[1:end]:
        if word[:1] == "-" and word.strip("-"):
            fail(_unknown_flag(word.lstrip("-").partition("=")[0]))
            sys.exit(MISTAKE)
    return words[:end] + words[end + 1 :]


def _unknown_flag(name: str) -> str:
    if len(name) > _LONGEST_NAME:
        return f"there is no flag --{name[:_LONGEST_NAME]}... of {len(name):,} characters."
    near = "".join(f" Did you mean --{one}?" for one in difflib.get_close_matches(name, FLAGS, n=1))
    hint = f"\n  Config changes go into --config, such as {_EXAMPLE}" if "config" in FLAGS else ""
    return f"there is no flag --{name}.{near}{hint}"


def _with_files(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the lines of files in place of each --flagfile.

    Raises:
      flags.Error: a file cannot be read, or too many are named, as by one that names itself.
    """
    waiting, done, num_files = [*reversed(arguments)], list[str](), 0
    while waiting:
        word = waiting.pop()
        if word == "--":
            return [*done, word, *reversed(waiting)]
        name, equals, path = word.partition("=")
        if name not in ("-flagfile", "--flagfile") or not (equals or waiting):
            done.append(word)
            continue
        path = path if equals else waiting.pop()
        num_files += 1
        if num_files > _MOST_FILES:
            raise flags.Error(
                f"--flagfile={path}: more than {_MOST_FILES} files name one another; remove some."
            )
        waiting += reversed(_flag_lines(path) if path else [])
    return done


def _flag_lines(path: str) -> list[str]:
    from fidgpt.files import read_bytes  # late: most commands name no file

    try:
        text = read_bytes(os.path.expanduser(path), most=_LARGEST_FILE).decode()
    except OSError as error:
        reason = error.strerror or error
        raise flags.Error(f"--flagfile={path} cannot be read: {reason}.") from error
    except UnicodeDecodeError as error:
        raise flags.Error(
            f"--flagfile={path} holds no text in UTF-8: write a flag a line."
        ) from error
    lines = (line.strip() for line in text.split("\n"))
    return [line for line in lines if line and not line.startswith(("#", "//"))]
