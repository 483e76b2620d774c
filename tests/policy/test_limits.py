"""What an episode must have room for, counted by hand and tried out."""

from __future__ import annotations

import pytest
from zorplex_rl.policy.limits import check_limits, needs
from zorplex_rl.policy.model_folder import EMBEDDED_PATH, fast_tokenizer, positions_of

from zorplex_rl.errors import ConfigError
from zorplex_rl.policy.rollout import Sampling
from zorplex_rl.policy.tool_loop import encode_text
from zorplex_rl.task.environment import Zorplex, kinds_of


def words(text: str) -> int:
    return len(text.split())


def test_the_shortest_answer_is_its_calls_their_results_and_the_tag():
    # LOOKUP[a] -> 1⏎LOOKUP[b] -> 2⏎[ANSWER] 3
    assert {need.tokens for need in needs(Zorplex(0), "compositional:easy", words)} == {8}
    assert {need.turns for need in needs(Zorplex(0), "compositional:easy", words)} == {3}
    assert {need.turns for need in needs(Zorplex(0), "recursive:easy", words)} == {2, 3, 4, 5}


def test_tokens_are_counted_as_the_policy_counts_them(embedded):
    tokenizer = fast_tokenizer(str(EMBEDDED_PATH))
    for text in ("LOOKUP[blip]", " -> 17\n", "[ANSWER] -4", Zorplex(kinds=("recursive",)).task(0).system):
        assert tokenizer.encode(text, add_special_tokens=False).ids == encode_text(embedded.tokenizer, text)


def test_a_kind_that_fits_says_nothing_and_one_that_does_not_is_named():
    assert check_limits(Zorplex(0), kinds_of("mix"), 100, 5, words) == []
    (said,) = check_limits(Zorplex(0), kinds_of("mix"), 100, 2, words)[:1]
    assert "100% of the compositional:easy tasks cannot be answered within --max-tokens 100 and --max-turns 2" in said


@pytest.mark.parametrize(
    ("max_tokens", "max_turns"),
    [
        (7, 9),
        (99, 2),
    ],
)
def test_limits_within_which_nothing_can_be_answered_are_refused(max_tokens, max_turns, wording):
    with pytest.raises(ConfigError) as refused:
        check_limits(Zorplex(0), ("compositional:easy",), max_tokens, max_turns, words)
    wording(refused.value, f"{max_tokens} tokens, {max_turns} turns")


def test_a_response_that_goes_beyond_what_the_model_can_read_is_refused():
    assert positions_of(str(EMBEDDED_PATH)) == 1024
    longest = max(need.prompt for need in needs(Zorplex(0), "simple:easy", words))
    assert check_limits(Zorplex(0), ("simple:easy",), 64 - longest, 5, words, positions=64) == []
    with pytest.raises(ConfigError, match="the policy reads at most 64 tokens"):
        check_limits(Zorplex(0), ("simple:easy",), 65 - longest, 5, words, positions=64)


def test_a_policy_that_cannot_read_a_prompt_and_its_answer_is_what_has_to_be_changed():
    longest = max(need.prompt for need in needs(Zorplex(0), "simple:easy", words))
    for room in (-longest, -1, 0, 4):
        with pytest.raises(ConfigError) as refused:
            check_limits(Zorplex(0), ("simple:easy",), 10, 5, words, positions=longest + room)
        assert str(refused.value) == (
            f"the policy reads at most {longest + room} tokens, and prompts take {longest} of them, but the shortest answer takes 5; "
            f"use a policy that reads more"
        )
    with pytest.raises(ConfigError, match=r"--max-tokens is 10, .* use 5 or less"):
        check_limits(Zorplex(0), ("simple:easy",), 10, 5, words, positions=longest + 5)


def test_the_limits_of_sampling_are_enough_for_everything():
    sampling = Sampling()
    names = [*kinds_of("mix"), "compositional:medium", "compositional:hard"]
    tokenizer = fast_tokenizer(str(EMBEDDED_PATH))
    count = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)  # noqa: E731
    assert check_limits(Zorplex(0), names, sampling.max_tokens, sampling.max_turns, count) == []
