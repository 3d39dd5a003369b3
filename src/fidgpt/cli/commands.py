"""The commands, by the modules that run them; light, as completion asks for it at every key."""

COMMANDS = {
    "train": "fidgpt.cli.train",
    "sweep": "fidgpt.cli.sweep",
    "sample": "fidgpt.sample",
    "evaluate": "fidgpt.evaluate",
    "export": "fidgpt.export",
}
