"""How directives are written: their kinds, and which kind one is; light, for completion."""

DEFAULT_CONFIG = "base"

BASES = ("config", "config_file", "config_str")  # where a graph begins

KINDS = {
    "config": "begin with a named config",
    "config_file": "begin with a file",
    "config_str": "begin with a config written out",
    "fiddler": "change the config by a named function",
    "set": "set one value",
    "tag": "say a quantity once for all who hear it",
    "del": "back to the default",
    "use": "put another part in a place",
    "tie": "make two places hold one part",
    "untie": "give a place a part of its own",
    "patch": "apply a saved difference",
}

_BY_MACHINE = "for_hardware"  # what it does elsewhere, nobody knows here


def split_directive(directive: str) -> tuple[str, str]:
    """The kind of a directive, "" where it has none, and the rest."""
    kind, colon, rest = directive.partition(":")
    return (kind.strip(), rest) if colon else ("", directive)


def is_base(directive: str) -> bool:
    """Whether a directive says where a graph begins."""
    return split_directive(directive)[0] in BASES


def is_by_machine(directive: str) -> bool:
    """Whether a directive is a fiddler that does, on each machine, what that machine needs."""
    kind, rest = split_directive(directive)
    return kind == "fiddler" and rest.partition("(")[0].strip().split(".")[-1] == _BY_MACHINE
