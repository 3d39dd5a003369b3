"""Everything about the config graph: it knows Fiddle, and no model and no trainer."""

from fidgpt.graph.bind import Heard, bind, resolve
from fidgpt.graph.build import build
from fidgpt.graph.check import check, checked
from fidgpt.graph.clone import clone, clone_part
from fidgpt.graph.difference.apply import apply, apply_patch, dump_patch
from fidgpt.graph.difference.changes import (
    Change,
    ItemMoved,
    PartAdded,
    PartRemoved,
    PartReplaced,
    SharingChanged,
    Side,
    TagsChanged,
    ValueChanged,
)
from fidgpt.graph.difference.diff import Changes, diff
from fidgpt.graph.difference.merge import merge
from fidgpt.graph.difference.text import diff_text
from fidgpt.graph.drawing.draw import draw
from fidgpt.graph.drawing.render import Drawing
from fidgpt.graph.errors import ConfigError, ConfigErrors, suggest
from fidgpt.graph.paths import find_place
from fidgpt.graph.provenance import Saying, Story, said_by, story, why_text
from fidgpt.graph.repro import Repro, repro
from fidgpt.graph.select import find, set_tag, tagged
from fidgpt.graph.selectors import places
from fidgpt.graph.storage.file import dump, load, load_with_changes
from fidgpt.graph.storage.fingerprint import equal, fingerprint
from fidgpt.graph.swap import swapped
from fidgpt.graph.text import outline
from fidgpt.graph.values import read_value
from fidgpt.graph.walk import Node, nodes, parts, title

__all__ = [
    "Change",
    "Changes",
    "ConfigError",
    "ConfigErrors",
    "Drawing",
    "Heard",
    "ItemMoved",
    "Node",
    "PartAdded",
    "PartRemoved",
    "PartReplaced",
    "Repro",
    "Saying",
    "SharingChanged",
    "Side",
    "Story",
    "TagsChanged",
    "ValueChanged",
    "apply",
    "apply_patch",
    "bind",
    "build",
    "check",
    "checked",
    "clone",
    "clone_part",
    "diff",
    "diff_text",
    "draw",
    "dump",
    "dump_patch",
    "equal",
    "find",
    "find_place",
    "fingerprint",
    "load",
    "load_with_changes",
    "merge",
    "nodes",
    "outline",
    "parts",
    "places",
    "read_value",
    "repro",
    "resolve",
    "said_by",
    "set_tag",
    "story",
    "suggest",
    "swapped",
    "tagged",
    "title",
    "why_text",
]
