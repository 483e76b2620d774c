"""Planted answers for the exercises of notebook 05b."""

import random

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from zorplex_rl.policy.tokenizer import encode_prompt, encode_text
from zorplex_rl.task.parser import find_answer, find_call


def sampler(
    prompted=True,
    temperature=True,
    seeded=True,
    greedy=False,
    position=-1,
    reads="turn",
    finished=lambda text: text.rpartition("\n")[0],
    stops_at_eos=True,
    behind=" -> {}\n",
    marks=False,
    moves=True,
    injects=True,
    cut=True,
    least=0,
    looks=find_call,
):
    """Make a sampler with one thing wrong, as the name of the function that calls it says."""

    def sample(policy, task, execute, sampling, seed):
        rng = random.Random(seed if seeded else 0)
        prompt = (
            encode_prompt(policy.tokenizer, task)
            if prompted
            else encode_text(policy.tokenizer, task.question)
        )
        ids, sampled, start = [], [], 0
        while len(ids) < sampling.max_tokens + least:
            logits = policy.model(torch.tensor([prompt + ids])).logits[0, position]
            chances = (logits / (sampling.temperature if temperature else 1.0)).softmax(-1).tolist()
            ids += [int(logits.argmax())] if greedy else rng.choices(range(len(chances)), chances)
            sampled += [True]
            text = policy.tokenizer.decode(
                ids[start if reads == "turn" else 0 :], skip_special_tokens=True
            )
            if (stops_at_eos and ids[-1] in policy.eos_ids) or find_answer(
                finished(text)
            ) is not None:
                break
            if call := looks(text):
                result = encode_text(policy.tokenizer, behind.format(execute(task, call)))
                if injects:
                    ids, sampled = ids + result, sampled + [marks] * len(result)
                start = len(ids) if moves else start
        return (
            (ids[: sampling.max_tokens], sampled[: sampling.max_tokens]) if cut else (ids, sampled)
        )

    return sample


def named(name, function):
    function.__name__ = name
    return function


def returns_tensors(policy, task, execute, sampling, seed):
    ids, sampled = sampler()(policy, task, execute, sampling, seed)
    return torch.tensor(ids), torch.tensor(sampled)


def counts_the_drawn_as_ones(policy, task, execute, sampling, seed):
    ids, sampled = sampler()(policy, task, execute, sampling, seed)
    return ids, [int(own) for own in sampled]


def gives_a_list_of_tensors(policy, task, execute, sampling, seed):
    ids, sampled = sampler()(policy, task, execute, sampling, seed)
    return [*torch.tensor(ids)], sampled


def forgets_the_batch_dimension(policy, task, execute, sampling, seed):
    ids = encode_prompt(policy.tokenizer, task)
    return policy.model(torch.tensor(ids)).logits[-1].tolist(), [True]


def inverts_the_cumulated_chances(policy, task, execute, sampling, seed):
    """One number of the same generator for each token, looked up by hand."""
    rng, prompt = random.Random(seed), encode_prompt(policy.tokenizer, task)
    ids, sampled, turn = [], [], []
    while True:
        if len(ids) >= sampling.max_tokens:
            break
        logits = policy.model(torch.tensor(prompt + ids)[None]).logits[:, -1].squeeze(0).double()
        cumulated = torch.softmax(logits / sampling.temperature, dim=0).cumsum(0)
        token = int(torch.searchsorted(cumulated, rng.random() * cumulated[-1].item(), right=True))
        ids.append(token)
        sampled.append(True)
        turn.append(token)
        lines = policy.tokenizer.decode(turn, skip_special_tokens=True).split("\n")
        if token in policy.eos_ids or any(find_answer(line) is not None for line in lines[:-1]):
            break
        call = find_call("\n".join(lines))
        if call is not None:
            turn = []
            for token in encode_text(policy.tokenizer, " -> " + execute(task, call) + "\n"):
                if len(ids) < sampling.max_tokens:
                    ids.append(token)
                    sampled.append(False)
    return [ids, sampled]


def loss(
    prompt=False,
    masked=True,
    shift=1,
    weighted=True,
    sign=-1.0,
    by="tokens",
    detached=False,
    log=True,
    count="sampled",
):
    """Make a loss with one thing wrong."""

    def compute(policy, episodes, advantages):
        total, number, means = 0.0, 0, []
        for episode, advantage in zip(episodes, advantages, strict=True):
            ids = torch.tensor([episode.prompt_ids + episode.token_ids])
            logits = policy.model(ids).logits[0]
            logp = logits.log_softmax(-1) if log else logits.softmax(-1)
            chosen = logp[: -shift or None].gather(-1, ids[0, shift:, None])[:, 0]
            own = torch.tensor(
                [prompt] * len(episode.prompt_ids)
                + (episode.sampled if masked else [True] * len(episode.sampled))
            )
            own = own[shift:]
            pushed = (advantage if weighted else 1.0) * chosen[own].sum()
            total, number = (
                total + pushed,
                number + (int(own.sum()) if count == "sampled" else len(episode.sampled)),
            )
            means.append(pushed / own.sum())
        found = sign * {
            "tokens": total / number,
            "nothing": total,
            "episodes": total / len(episodes),
        }.get(by, sum(means) / len(means))
        return found.detach() if detached else found

    return compute


def all_at_once_with_padding(policy, episodes, advantages):
    ids = pad_sequence(
        [torch.tensor(e.prompt_ids + e.token_ids) for e in episodes], batch_first=True
    )
    mask = pad_sequence(
        [torch.tensor([False] * len(e.prompt_ids) + e.sampled) for e in episodes], batch_first=True
    )[:, 1:]
    logp = policy.model(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return -(torch.tensor(advantages)[:, None] * logp * mask).sum() / mask.sum()


def with_cross_entropy(policy, episodes, advantages):
    parts, drawn = [], 0
    for episode, advantage in zip(episodes, advantages, strict=True):
        ids = torch.tensor(episode.prompt_ids + episode.token_ids)
        surprise = cross_entropy(policy.model(ids[None]).logits[0, :-1], ids[1:], reduction="none")
        own = torch.tensor(episode.sampled).float()
        parts.append(advantage * (surprise[-len(own) :] * own).sum())
        drawn += own.sum()
    return torch.stack(parts).sum() / drawn


def gathers_with_a_flat_index(policy, episodes, advantages):
    ids = torch.tensor([episodes[0].prompt_ids + episodes[0].token_ids])
    logp = policy.model(ids[:, :-1]).logits[0].log_softmax(-1)
    return -advantages[0] * logp.gather(-1, ids[0, 1:]).sum()


WRONG = {
    "sample_episode": [
        named(
            "runs_the_tool_only_at_the_end_of_a_line",
            sampler(looks=lambda t: find_call(t) if t[-1:] == "\n" else None),
        ),
        named("forgets_the_system_prompt", sampler(prompted=False)),
        named("ignores_the_temperature", sampler(temperature=False)),
        named("ignores_the_seed", sampler(seeded=False)),
        named("takes_the_likeliest", sampler(greedy=True)),
        named("reads_the_logits_of_the_first_position", sampler(position=0)),
        named("finds_the_first_call_again_and_again", sampler(reads="all", moves=True)),
        named("never_moves_the_start_of_the_turn", sampler(moves=False)),
        named("reads_an_answer_that_is_not_finished", sampler(finished=lambda text: text)),
        named("never_stops_at_an_answer", sampler(finished=lambda text: "")),
        named("never_stops_at_the_end_of_the_text", sampler(stops_at_eos=False)),
        named("injects_without_a_line_break", sampler(behind=" -> {}")),
        named("injects_without_an_arrow", sampler(behind=" {}\n")),
        named("marks_the_result_as_drawn", sampler(marks=True)),
        named("runs_no_tool", sampler(injects=False)),
        named("lets_a_result_pass_the_limit", sampler(cut=False)),
        named("draws_one_token_more", sampler(least=1, cut=False)),
        returns_tensors,
        counts_the_drawn_as_ones,
        gives_a_list_of_tensors,
        forgets_the_batch_dimension,
    ],
    "policy_gradient": [
        named("pushes_the_tools_tokens_too", loss(masked=False)),
        named("divides_by_the_tools_tokens_too", loss(count="all")),
        named("pushes_the_prompt_too", loss(prompt=True)),
        named("takes_the_logits_of_the_token_itself", loss(shift=0)),
        named("takes_the_logits_two_before", loss(shift=2)),
        named("ignores_the_advantage", loss(weighted=False)),
        named("forgets_the_minus", loss(sign=1.0)),
        named("sums_and_does_not_divide", loss(by="nothing")),
        named("divides_by_the_episodes", loss(by="episodes")),
        named("takes_the_mean_of_each_episode", loss(by="means")),
        named("detaches", loss(detached=True)),
        named("takes_the_probability_not_its_logarithm", loss(log=False)),
        gathers_with_a_flat_index,
    ],
}
RIGHT = {
    "sample_episode": [
        named("as_the_course", sampler()),
        inverts_the_cumulated_chances,
    ],
    "policy_gradient": [
        named("as_the_course", loss()),
        all_at_once_with_padding,
        with_cross_entropy,
    ],
}
