"""Talk to a trained model, or serve it: `fidgpt chat runs/NAME`.

In the terminal, `/help` lists the commands that the program takes rather than the model.
"""

import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from fidgpt.cli import app, sampling, trained
from fidgpt.errors import ConfigError

if TYPE_CHECKING:
    from fidgpt.cli.answers import Assistant

FLAGS = flags.FLAGS

flags.DEFINE_string("system", None, "The system message of the conversation.")
flags.DEFINE_boolean("serve", False, "Serve a page and OpenAI's interface instead.")
flags.DEFINE_string("host", "127.0.0.1", "Address of --serve; others than this machine's need it.")
flags.DEFINE_integer("port", 8000, "Port of --serve; 0 for a free one.", 0)
flags.DEFINE_string("token", None, "Secret that callers of --serve have to name.")
flags.DEFINE_integer("answers", 16, "Number of answers that --serve writes at once.", 1)

_OF_SERVER = ("host", "port", "token", "answers")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Talk, or serve until interrupted.

    Raises:
      ConfigError: not one directory was named, or a flag has no effect.
      DataError: the tokenizer has no chat template, or the server's packages are missing.
      RunError: there is no run, or there is not enough memory.
    """
    # Late: --help loads no torch.
    from fidgpt.train.device import within_memory

    path = trained.one_directory(arguments, "chat")
    app.refuse_unused({("serve",): _OF_SERVER})
    if FLAGS.serve and FLAGS.system:
        raise ConfigError("--system has no effect with --serve: callers send what they say.")
    from fidgpt.cli.answers import Assistant

    settings = sampling.chosen(temperature=None, top_k=None, top_p=None)
    with within_memory(remedy="Let answers have fewer tokens: --num_tokens=200."):
        assistant = Assistant(path, float32=FLAGS.float32, settings=settings)
        if FLAGS.serve:
            from fidgpt.cli.serve import serve

            address = {"host": FLAGS.host, "port": FLAGS.port, "token": FLAGS.token}
            serve(assistant, name=path.name, batch_size=FLAGS.answers, **address)
            return
        _Conversation(assistant).talk()


class _Conversation:
    """A conversation in the terminal.

    /system TEXT      begin a new conversation with the system message TEXT; without TEXT, with none
    /temperature X    0 is greedy; without X it is shown
    /reset            begin a new conversation
    /history          show this one
    /quit             end, as Ctrl-D does; Ctrl-C ends an answer
    """

    def __init__(self, assistant: "Assistant") -> None:
        self._assistant = assistant
        self._messages: list[Any] = []
        self._settings: dict[str, Any] = {}
        self._num_answers = 0
        self._reset(FLAGS.system)
        assistant.conversation([_message("user", "Hello")])  # an error of the template comes first

    def talk(self) -> None:
        """Read lines and answer them, until the input ends."""
        is_shown = sys.stdin.isatty()
        if is_shown:
            with contextlib.suppress(ImportError):  # lines can be edited, and called again
                import readline  # noqa: F401
            print("/help lists commands; Ctrl-D ends.")
        while True:
            try:
                line = input("> " if is_shown else "")
            except EOFError:
                return
            command, _, rest = line.strip().partition(" ")
            if command == "/quit":
                return
            if command.startswith("/"):
                print(self._command(command, rest.strip()))
            elif line.strip():
                self._answer(line)

    def _command(self, command: str, rest: str) -> str:
        """Carry out a command, and return what to print."""
        match command:
            case "/system" | "/reset":
                self._reset(rest if command == "/system" else self._system)
                return "A new conversation."
            case "/temperature":
                return self._temperature(rest)
            case "/history":
                return "\n".join(f"{m['role']}: {m['content']}" for m in self._messages)
        commands = (inspect.getdoc(self) or "").partition("\n\n")[2]
        return commands if command == "/help" else f"There is no {command}.\n{commands}"

    def _temperature(self, text: str) -> str:
        try:
            value = float(text or (self._assistant.settings | self._settings)["temperature"])
        except ValueError:
            value = -1.0
        if value < 0:
            return f"temperature={text} must be a number from 0 on."
        self._settings["temperature"] = value
        return f"temperature={value}"

    def _reset(self, system: str | None) -> None:
        self._system = system
        self._messages = [_message("system", system)] if system else []

    def _answer(self, line: str) -> None:
        from fidgpt.data import DataError

        asked, pieces = [*self._messages, _message("user", line)], []
        self._num_answers += 1
        try:
            answer = self._assistant.answer(
                self._assistant.conversation(asked),
                num_tokens=FLAGS.num_tokens,
                seed=FLAGS.seed + self._num_answers,
                **self._settings,
            )
            for piece in self._assistant.write(answer):
                pieces.append(piece)
                print(piece, end="", flush=True)
        except DataError as error:
            print(f"{error}\n/reset begins a new conversation.")
            return
        except KeyboardInterrupt:
            pass
        print()
        if (text := "".join(pieces)).strip():  # templates take no empty answer
            self._messages = [*asked, _message("assistant", text)]


def _message(role: str, content: str) -> Any:
    return {"role": role, "content": content}
