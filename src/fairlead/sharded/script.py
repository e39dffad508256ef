"""A Lua script: the text of its file beside this module, and the hash by which the server knows
it."""

from __future__ import annotations

import hashlib
from importlib import resources


class Script:
    """One Lua file, preceded by common.lua and maybe others. Clients run it by EVALSHA, and by EVAL
    if the server does not have it."""

    def __init__(self, *names: str) -> None:
        """`names`: of the files, in their order."""
        self.names = names
        folder = resources.files(__package__)
        self.text = "".join(
            folder.joinpath(f"{name}.lua").read_text() for name in ("common", *names)
        )
        # Redis names a script by its SHA-1; the hash protects nothing.
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


WRITE = Script("write")
READ = Script("index", "read")
ACK = Script("ack")
EXTEND = Script("extend")
DELETE = Script("delete")
STATS = Script("stats")
DETAILS = Script("details")
RECLAIM = Script("index", "reclaim")
CORDON = Script("cordon")
CORDONED = Script("cordoned")
WEIGH = Script("weigh")
DROP_GROUP = Script("drop_group")
REVIVE = Script("revive")
HEADS = Script("heads")
LETTERS = Script("letters")
NAMES = Script("names")
RELEASE = Script("release")
