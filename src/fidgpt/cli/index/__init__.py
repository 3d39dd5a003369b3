"""What --list, --help and completion show, kept ready in a file that is read without torch.

`fidgpt.cli.index.ask` returns it as a dict of plain values:

    configs, fiddlers   by name: doc, file, line, arguments
    tags                by name: doc, unit, file, line
    parts               by name: module, doc, arguments; what may be put into a graph
    fits                by type, as knobs name it: the names of the parts that may stand there
    knobs               by config, in reading order: path, type, value, and what else is known
    quantities          by config and tag: the paths that say it and those that hear it
    flags               by command: name, help, kind, choices
"""
