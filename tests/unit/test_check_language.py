"""The language checker finds what the glossary refuses, and nothing in plain sentences."""

from __future__ import annotations

import pytest

from scripts.check_language import check_markdown, check_python


def rules(source: str) -> list[str]:
    return [finding.rule for finding in check_python("module.py", source)]


@pytest.mark.parametrize(
    "text",
    [
        "Of both, those that no write has carried yet.",
        "What an owner before has learnt.",
        "That has been kept.",
        "The same, for a queue.",
        "Whoever leases a partition writes.",
        "It is kept.",
        "This is the first.",
    ],
)
def test_an_opening_without_a_noun_is_refused_in_docstrings_notes_and_comments(text: str) -> None:
    assert rules(f'def f():\n    """{text}"""\n') == ["opening"]
    assert rules(f'class A:\n    x: int = 1\n    """{text}"""\n') == ["opening"]
    assert rules(f"# {text}\nx = 1\n") == ["opening"]
    assert rules(f"x = 1  # {text}\n") == ["opening"]


@pytest.mark.parametrize(
    "text",
    [
        "Return the tasks due by `now`.",
        "Queue limits, by fairness key.",
        "This queue keeps its order.",
        "Both stores keep the order.",
        'Drop `grab` and "bell": quoted names are not prose.',
    ],
)
def test_a_plain_sentence_passes(text: str) -> None:
    assert rules(f"def f():\n    '''{text}'''\n") == []


def test_the_later_lines_of_a_comment_may_begin_with_any_word() -> None:
    assert (
        rules("# Release the partitions first, so that nodes take over\n# what is left.\nx = 1\n")
        == []
    )


def test_a_sentence_whose_subject_is_a_pronoun_is_refused() -> None:
    assert rules('"""Return the task. It is locked."""') == ["pronoun"]


def test_retired_words_are_refused_in_texts_and_in_names() -> None:
    assert rules('"""Grab a task."""') == ["word"]
    assert rules('"""Return the answer."""') == ["phrase"]
    assert rules("def grab_next(ear): ...") == ["name", "name"]
    assert rules("self.bell = 1") == ["name"]
    assert rules("def tell(x): ...\ndef forget(x): ...") == ["name", "name"]


def test_code_blocks_of_a_page_are_not_prose() -> None:
    page = "Run this:\n\n```\ngrab answer\n```\n\nThe bell rings.\n"
    assert [(f.line, f.rule) for f in check_markdown("page.md", page)] == [(7, "word")]
