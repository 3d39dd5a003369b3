"""The flags that ask about what there is, rather than run it: --list and --completion."""

from typing import Any

from absl import flags

from fidgpt.cli.app import only

FLAGS = flags.FLAGS


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
        from fidgpt.cli.completion.scripts import script

        print(script(FLAGS.completion), end="")
        return True
    if FLAGS.list is None:
        return False
    from fidgpt.cli.showing.listing import print_listing

    print_listing(FLAGS.list, FLAGS.config, FLAGS.allow)
    return True
