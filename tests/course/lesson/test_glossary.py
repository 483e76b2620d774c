"""The glossary holds the terms of the notebooks: no more, and no fewer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prose import texts_of

from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.lesson.glossary import GLOSSARY, anchor, entry_of

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("[0-9]*.py"))


@pytest.mark.parametrize("term", GLOSSARY)
def test_every_term_is_used_by_a_notebook(term):
    stem = re.escape(term[:-1] if term.endswith("y") else term).replace(r"\ ", r"[\s-]+")
    used = re.compile(rf"\b{stem}", re.IGNORECASE)
    assert any(used.search(path.read_text()) for path in NOTEBOOKS), (
        f"no notebook uses {term!r}; take it out"
    )


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_bold_term_of_a_notebook_is_explained(notebook):
    bold = re.findall(r"\*\*([^*{}…]{2,60})\*\*", "\n".join(texts_of(notebook)))
    assert [term for term in bold if entry_of(term) is None] == []


@pytest.mark.parametrize(("term", "said"), GLOSSARY.items(), ids=list(GLOSSARY))
def test_an_explanation_is_one_or_two_short_sentences(term, said):
    sentences = re.split(r"(?<=[.?])\s", said)
    assert len(sentences) <= 2 and said.endswith(".")
    assert all(len(sentence.split()) <= 30 for sentence in sentences)
    assert '"' not in said and "[" not in said, "it stands in a link's title"


def test_anchors_differ():
    assert len({anchor(term) for term in GLOSSARY}) == len(GLOSSARY)


def test_a_term_is_found_as_it_stands_in_a_sentence():
    assert [entry_of(shown) for shown in ("Replicas", "policies", "torn  reads", "the")] == [
        "replica",
        "policy",
        "torn read",
        None,
    ]


def test_a_term_links_to_the_glossary_on_the_site_and_explains_itself_in_marimo(monkeypatch):
    assert (
        'href="glossary.html#torn-read"' in lesson.md(lesson.term("torn read", "torn reads")).text
    )
    monkeypatch.setattr(lesson, "unattended", lambda: False)
    said = lesson.md(lesson.term("torn read", "torn reads")).text
    assert "href" not in said and 'title="A copy whose' in said and 'tabindex="0"' in said


def test_a_term_that_is_missing_is_said():
    with pytest.raises(KeyError, match="walrus"):
        lesson.term("walrus")
