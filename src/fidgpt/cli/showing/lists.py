"""The lists that `--list` prints; light, as completion asks for it at every key."""

LISTS = ("configs", "fiddlers", "tags", "parts", "knobs")
OF_A_PLACE = ("parts", "knobs")  # which may be asked for one path
