"""Workloads written by hand: pushes and polls, in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fairlead.errors import ConfigurationError
from fairlead.model import DEFAULT_PRIORITY, PRIORITIES

MOST_TASKS = 1_000_000

_WORD = re.compile(r"([A-Za-z]+)(?:\*([0-9]{1,7}))?(?:@([0-9]+))?")
_PRIORITIES = re.compile(r"push((?:\s+[0-9]+)+)\s+as\s+priorities")


class ScriptTask(NamedTuple):
    """A task that the script pushes."""

    key: str
    priority: int


class PushStep(NamedTuple):
    """A step in which tasks arrive."""

    tasks: list[ScriptTask]


class PollStep(NamedTuple):
    """A number of polls, or None to poll until nothing is left."""

    polls: int | None


def parse_script(text: str) -> list[PushStep | PollStep]:
    """Return the steps, separated by `;`. A script that ends with a push is polled to its end.

    Raise ConfigurationError for a step that is none of these:

    push WORD...              each letter is a key's task; `ab*3`: three times, `ab@2`: priority 2
    push N... as priorities   a task of each of these priorities, of a key of the same name
    poll N, poll all          N polls, or polls until nothing is left
    """
    steps = [_step(part.strip()) for part in text.split(";") if part.strip()]
    tasks = sum(len(step.tasks) for step in steps if isinstance(step, PushStep))
    if not tasks:
        raise ConfigurationError(f"--script {text!r} pushes nothing; begin with, say, 'push aaaab'")
    _check_size(tasks)
    return [*steps, PollStep(None)] if isinstance(steps[-1], PushStep) else steps


def _step(text: str) -> PushStep | PollStep:
    verb, *words = text.split()
    if verb == "poll" and len(words) == 1 and (words[0] == "all" or words[0].isdecimal()):
        return PollStep(None if words[0] == "all" else int(words[0]))
    if found := _PRIORITIES.fullmatch(text):
        return PushStep([ScriptTask(number, _priority(number)) for number in found[1].split()])
    if verb == "push" and words:
        return PushStep([task for word in words for task in _tasks_of(word)])
    raise ConfigurationError(
        f"--script: {text!r} is no step; use 'push aab b*20 c@2', 'push 4 2 as priorities', 'poll"
        " 2' or 'poll all'"
    )


def _tasks_of(word: str) -> Iterator[ScriptTask]:
    found = _WORD.fullmatch(word)
    if found is None:
        raise ConfigurationError(
            f"--script: cannot push {word!r}; use letters, then *COUNT, then @PRIORITY, as in aab,"
            " b*20 or c@2"
        )
    letters, count, priority = found.groups()
    level = DEFAULT_PRIORITY if priority is None else _priority(priority)
    times = 1 if count is None else int(count)
    _check_size(len(letters) * times)
    for _ in range(times):
        for letter in letters:
            yield ScriptTask(letter, level)


def _check_size(tasks: int) -> None:
    if tasks > MOST_TASKS:
        raise ConfigurationError(
            f"--script pushes more than {MOST_TASKS:,} tasks; use --tasks and --keys"
        )


def _priority(text: str) -> int:
    if int(text) not in PRIORITIES:
        raise ConfigurationError(
            f"--script: priority {text}: use 0 (first) to {PRIORITIES[-1]} (last)"
        )
    return int(text)
