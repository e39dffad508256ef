"""A Lua script: its text from the file beside this module, and the hash by which the server knows
it."""

from __future__ import annotations

import hashlib
from importlib import resources


class Script:
    """One file, behind what all of them share. Run by EVALSHA, and by EVAL where the server does
    not know it (any more)."""

    def __init__(self, name: str) -> None:
        folder = resources.files(__package__)
        self.text = (
            folder.joinpath("common.lua").read_text() + folder.joinpath(f"{name}.lua").read_text()
        )
        # Redis names a script by this; nothing is kept secret with it.
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


WRITE = Script("write")
READ = Script("read")
ACK = Script("ack")
EXTEND = Script("extend")
HELD = Script("held")
FINISH = Script("finish")
DELETE = Script("delete")
STATS = Script("stats")
RECLAIM = Script("reclaim")
CORDON = Script("cordon")
ASIDE = Script("aside")
WEIGH = Script("weigh")
REWEIGH = Script("reweigh")
FORGET = Script("forget")
SECTIONS = Script("sections")
UNFINISHED = Script("unfinished")
REVIVE = Script("revive")
PREPARE = Script("prepare")
