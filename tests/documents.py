"""Commands and code of the documentation: found in its text, and run as a reader would run them."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from forked import Python

LONGEST = 60  # seconds that a command may take; what takes longer is marked as not run
ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(
    r"^```(?P<language>\w*)\n(?P<fenced>.*?)^```$|(?P<indented>(?:^    [^\n]*\n|^\n(?=    ))+)",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# (\S+\.py)\n")  # a block that begins so is a file of this name
_PROGRAMS = ("python", "make", "torchrun", ".", "pip", "cat", "eval")  # as indented blocks begin
# Sets up an environment, needs several processes, or changes the reader's own shell.
_NOT_HERE = ("make", "torchrun", ".", "pip", "eval")
_NOT_RUN = re.compile(r"#\s*not run: \w+")


@dataclass(frozen=True)
class Step:
    """One thing to run.

    Attributes:
      text: the command as the shell gets it, or Python code.
      is_python: which of both it is.
      shown: the output that the text shows; None where it shows none.
      file: the file that the text is, which is written rather than run.
    """

    text: str
    is_python: bool = False
    shown: str | None = None
    file: str | None = None

    @property
    def is_passed_over(self) -> bool:
        """Whether a test leaves it to the reader, for a reason that can be seen in the text."""
        program = self.text.split(maxsplit=1)[0]
        return not self.is_python and (program in _NOT_HERE or bool(_NOT_RUN.search(self.text)))

    @property
    def status(self) -> int:
        """The exit status: 2 where an error is shown, as a mistake of the user's ends."""
        return 2 if re.search(r"^error: ", self.shown or "", re.MULTILINE) else 0


@dataclass
class Outcome:
    """How a step ended, and all that it wrote, in the order in which it was written."""

    status: int
    output: str


def steps_of(text: str) -> list[Step]:
    """The commands and the code of a document, in order."""
    blocks = [*_BLOCK.finditer(text)]
    steps: list[Step] = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block["indented"]:
            steps += _of_indented(textwrap.dedent(block["indented"]))
        elif block["language"] == "sh":
            steps += _commands(block["fenced"])
        elif block["language"] == "python":
            is_next = after is not None and not text[block.end() : after.start()].strip()
            output = after["fenced"] if after and is_next and after["language"] == "text" else None
            steps.append(_code(block["fenced"], output))
    return steps


def matches(shown: str, output: str) -> bool:
    """Whether an output is as it is shown; `...` stands for anything, alone for any lines."""
    pattern = ""
    for line in shown.strip("\n").splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pieces = [re.escape(piece) for piece in line.rstrip().split("...")]
            pattern += ".*".join(pieces) + r"[ ]*\n"
    return re.fullmatch(pattern, output.strip("\n") + "\n") is not None


@dataclass
class Reader:
    """A user who runs the commands of a document, in an own directory."""

    directory: Path
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, step: Step) -> Outcome:
        """Runs a command or code to its end."""
        if step.file is not None:
            path = self.directory / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
            return Outcome(0, "")
        if step.is_python:
            return self._python(step.text)
        return run_command(step.text, self.directory)

    def _python(self, code: str) -> Outcome:
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.chdir(self.directory):
            exec(compile(code, "the document", "exec"), self.names)
        return Outcome(0, written.getvalue())


def run_command(text: str, directory: Path) -> Outcome:
    """Runs what is typed in a shell: Python in a process that has imported torch before."""
    words = shlex.split(text, comments=True)
    if "python" not in words or {"|", "&&", ";"} & set(words):
        return _shell(text, directory)
    at = words.index("python")
    extra = dict(word.split("=", 1) for word in words[:at])
    arguments, target = words[at + 1 :], None
    if ">" in arguments:
        target = directory / arguments[arguments.index(">") + 1]
        arguments = arguments[: arguments.index(">")]
    if arguments[0] != "-m":
        arguments[0] = str(ROOT / arguments[0])
    python = Python(
        *arguments,
        output=directory.parent / f"{directory.name}.out",
        printed=target,
        directory=directory,
        environment=os.environ | extra,
    )
    status = python.end(seconds=LONGEST)
    return Outcome(status, python.output)


def _shell(text: str, directory: Path) -> Outcome:
    done = subprocess.run(
        ["bash", "-c", text], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return Outcome(done.returncode, done.stdout.decode())


def _code(text: str, shown: str | None) -> Step:
    path = _FILE.match(text)
    return Step(text, file=path[1]) if path else Step(text, is_python=True, shown=shown)


def _of_indented(block: str) -> list[Step]:
    """The steps of an indented block, which may be anything else, too."""
    block = block.strip("\n") + "\n"
    if block.startswith(("import ", "from ")):
        return [Step(block, True)]
    return _commands(block) if block.split(maxsplit=1)[0] in _PROGRAMS else []


def _commands(block: str) -> list[Step]:
    """The commands of a block: after each `$ `, with output below it; else one on every line."""
    block = block.replace("\\\n", "\\\0")
    if "$ " not in (block[:2], *re.findall(r"\n(\$ )", block)):
        lines = [line for line in block.splitlines() if line.strip()]
        return [Step(_joined(line)) for line in lines]
    steps = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        steps.append(Step(_joined(command), shown=shown if shown.strip() else None))
    return steps


def _joined(line: str) -> str:
    return re.sub(r"\\\0\s*", "", line)
