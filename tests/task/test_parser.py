"""What a text says: one reading of calls and answers, strict about integers, the same at once and
piece by piece."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zorplex_rl.task.parser import TOOL_NAMES, ToolCall, answer_is_complete, find_answer, find_call

ANSWERS = {
    "[ANSWER] 42": 42, "[ANSWER] -42": -42, "[ANSWER] +42": 42, "[ANSWER] 0": 0, "[ANSWER] 007": 7, "[ANSWER]42": 42,
    "[ANSWER] \t 42": 42, "so [ANSWER] 42.": 42, "[ANSWER] 42, as I said": 42, "[ANSWER] 42\n": 42, "[ANSWER] 4 apples": 4,
    "[ANSWER] 42\n17": 42, "[ANSWER] 42\n+ 17": 42, "[ANSWER] 17 apples, not %": 17,
    # A line's last tag counts, and the last line with an answer.
    "[ANSWER] 4 no, [ANSWER] -42": -42, "[ANSWER] 4\n[ANSWER] 5\n": 5, "[ANSWER] 5 [ANSWER] 4 [ANSWER] 5": 5,
    "[ANSWER] [ANSWER] 4": 4, "[ANSWER] 4\n[ANSWER] 5 or 6": 4, "[ANSWER] 4 or [ANSWER] 5\nso": 5,
}  # fmt: skip
NO_ANSWERS = [
    "", "42", "the value is 42", "ANSWER 42", "[answer] 42", "[ANSWER ] 42", "[ANSWER]", "[ANSWER] ", "[ANSWER] none", "[ANSWER]: 42",
    "[ANSWER] = 42", "[ANSWER] [ANSWER]", "[ANSWER]\n42", "[ANSWER] - 42", "[ANSWER] --42", "[ANSWER] +-42", "[ANSWER] x42", "[ANSWER] .5",
    "[ANSWER] 4 [ANSWER] 5 or 6", "[ANSWER] 4 [ANSWER] unknown", "[ANSWER] 4 [ANSWER]",
    # Digits and signs are ASCII; Python converts no number of thousands of digits.
    *(f"[ANSWER] {digits}" for digits in ("４２", "٤٢", "४२", "²", "Ⅷ", "−42", "9" * 5000)),
]  # fmt: skip
PARTS = [
    ".5", ".0", ",000", ":30", " 2", "\t2", "nd", "e5", "x", "_000", "%", "+25", " + 25", "-25", "=42", " = 42", "*2", "/2", "^2",
    "**2", "--25", "+-25", " == 42", " + -25", "²", "½", "٣", "４", "é", "％", " ﹪", "٪", " ؉", " ‰", "\u200b%", " (%)", " – %",
]  # fmt: skip
"""What makes the integer before it a part of something else."""


@pytest.mark.parametrize("text", ANSWERS)
def test_a_tag_followed_by_a_whole_integer_is_an_answer(text):
    assert find_answer(text) == ANSWERS[text]


@pytest.mark.parametrize("text", [*NO_ANSWERS, *(f"[ANSWER] 17{part}" for part in PARTS)])
def test_a_tag_without_its_own_integer_alone_is_no_answer(text):
    assert find_answer(text) is None


@given(st.integers(-(10**9), 10**9), st.text(st.characters(blacklist_characters="["), max_size=20))
def test_every_integer_is_read_back_whatever_stands_before_its_tag(value, before):
    assert find_answer(f"{before}[ANSWER] {value}") == value


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("LOOKUP[blip]", "LOOKUP", "blip"), ("GETKEY[blip]", "GETKEY", "blip"), ("FETCH[K38]", "FETCH", "K38"), ("LOOKUP[]", "LOOKUP", ""),
        ("first LOOKUP[ blip ], then", "LOOKUP", "blip"), ("LOOKUP[two words]", "LOOKUP", "two words"), ("(GETKEY[blip])", "GETKEY", "blip"),
        ("LOOKUP[a] LOOKUP[b]", "LOOKUP", "a"), ("LOOKUP[LOOKUP[blip]]", "LOOKUP", "blip"), ("LOOKUP[a LOOKUP[b]", "LOOKUP", "b"),
        ("[LOOKUP[blip]]", "LOOKUP", "blip"),
    ],
)  # fmt: skip
def test_the_first_complete_call_is_found(text, name, argument):
    call = find_call(text)
    assert (call.name, call.argument) == (name, argument)
    assert text[: call.end].endswith("]")


@pytest.mark.parametrize(
    "text",
    ["", "LOOKUP", "LOOKUP[", "LOOKUP[blip", "LOOKUP [blip]", "LOOKUP(blip)", "lookup[blip]", "SEARCH[blip]", "xLOOKUP[blip]",
     "_LOOKUP[blip]", "LOOKUPS[blip]", "LOOKUP[bl\nip]", "LOOKUP\n[blip]", "[blip]", "LOOKUP[[blip]"],
)  # fmt: skip
def test_what_is_not_quite_a_call_is_none(text):
    assert find_call(text) is None


def test_a_call_at_the_very_end_ends_there_and_prints_as_it_was_written():
    text = "so FETCH[K38]"
    assert find_call(text) == ToolCall("FETCH", "K38", len(text))
    assert str(find_call(text)) == "FETCH[K38]"


def test_an_answer_is_complete_only_when_its_line_has_ended():
    assert not answer_is_complete("[ANSWER] 4")
    assert not answer_is_complete("[ANSWER]\n")
    assert not answer_is_complete("17+25=42\n")
    assert not answer_is_complete("[ANSWER] 4.5\n")
    assert answer_is_complete("[ANSWER] 4\n")
    assert answer_is_complete("so [ANSWER] -4, yes\n")


FRAGMENTS = [
    *TOOL_NAMES, "[", "]", "\n", " ", "[ANSWER]", "-", "4", "2", ".", "blip", "K38", "x", "é", "LOOKUP[blip]", "[ANSWER] 4"
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join)


@settings(max_examples=500)
@given(texts)
def test_reading_line_by_line_as_it_grows_finds_what_reading_the_whole_text_finds(text):
    line_start, call, answered = 0, None, False
    for end in range(1, len(text) + 1):
        if text[end - 1] not in "]\n":
            continue
        line = text[line_start:end]
        if found := find_call(line):
            call = (found.name, found.argument, line_start + found.end)
            break
        answered = answered or answer_is_complete(line)
        if text[end - 1] == "\n":
            line_start = end
    whole = find_call(text)
    assert call == (whole and (whole.name, whole.argument, whole.end))
    if whole is None:
        ended_lines = text[: text.rfind("\n") + 1]
        assert answered == (find_answer(ended_lines) is not None)
