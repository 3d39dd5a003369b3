"""fidgpt trains language models in PyTorch from one graph of deferred calls.

    fidgpt train base make_small num_steps=200     train a model
    fidgpt sweep base optimizer.lr=1e-3,3e-3       train variants of a config
    fidgpt report runs/SWEEP                       show the results of a sweep
    fidgpt sample runs/NAME                        continue texts with a model
    fidgpt chat runs/NAME                          talk to a model, or serve it
    fidgpt evaluate runs/NAME                      evaluate a model
    fidgpt export runs/NAME FOLDER                 save a model for others
    fidgpt plot runs/NAME runs/OTHER               draw losses of runs
    fidgpt launch --nproc-per-node=8 -m fidgpt train base
                                                   train by several processes

fidgpt COMMAND --help shows the flags of a command.
"""

import importlib
import signal
import sys
import sysconfig
from pathlib import Path

from fidgpt import __version__

COMMANDS = {
    "train": "fidgpt.cli.train",
    "sweep": "fidgpt.cli.sweep",
    "sample": "fidgpt.cli.sample",
    "chat": "fidgpt.cli.chat",
    "evaluate": "fidgpt.cli.evaluate",
    "export": "fidgpt.cli.export",
    "plot": "fidgpt.cli.plot",
    "report": "fidgpt.cli.report",
    "launch": "fidgpt.launch",
}


def run() -> None:
    """Run the command that the first word names, as its own program would run it."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        program = Path(sysconfig.get_path("scripts"), f"fidgpt-{name}")  # which a run records
        sys.argv = [str(program), *sys.argv[2:]]
        importlib.import_module(COMMANDS[name]).run()
        return
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # its reader may leave, as `head` does
    if name == "--version":
        print(f"fidgpt {__version__}")
    elif name in ("--help", "-h", "help"):
        print(__doc__)
    else:
        print(f"error: there is no command {name!r}.\n\n{__doc__}", file=sys.stderr)
        sys.exit(2)
