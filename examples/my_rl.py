"""Teach a language model to use a tool, by reinforcement learning: one process, one file, no framework.

    python examples/my_rl.py         in the course's folder, which has a small model; takes a minute

Each word has a secret number that only a tool knows. The model writes a text. As soon as it has written
a call, the loop runs the tool and injects an arrow and the result:

    LOOKUP[blip] -> 32 ⏎ LOOKUP[mip] -> 18 ⏎ 32+18=50 ⏎ [ANSWER] 50 ⏎

A training step samples 8 texts for each of 4 questions. The tokens of a text become more likely if it
scores above the mean of the texts for its question, and less likely if it scores below.

Deliberately left out: batched forward passes and a key-value cache, which only make it faster. my_rl_smollm2.py
teaches a real language model with the same functions.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

FOLDER = "zorplex_rl/policy/embedded"
TRAINING = "blip clup faz frub gorn hax klem mip norf prub rilk snib ulf wub zam zork".split()
HELD_OUT = "bonk drim flim glop grix jint lurp nask plek quon skob trun vom yim zil zorp".split()
PHRASINGS = ("What is {}?", "Tell the value of {}.", "{} = ?")
SYSTEM = "Words have hidden values. LOOKUP[word] tells one. "
SYSTEM += "Do the arithmetic. End with [ANSWER] and the integer."
CALL = re.compile(r"LOOKUP\[([^\[\]\n]*)\]")
ANSWER = re.compile(r"\[ANSWER\] *(-?[0-9]+) *$", re.MULTILINE)


@dataclass
class Task:
    """A question with one right answer."""

    messages: list[dict[str, str]]
    answer: int
    table: dict[str, int]
    """The number of each word. Only the tool reads it."""


@dataclass
class Sampling:
    temperature: float
    max_tokens: int
    """The longest response, the tool's results included."""


@dataclass
class Episode:
    """One attempt at a task."""

    prompt_ids: list[int]
    token_ids: list[int]
    """The response, the tool's results included."""
    sampled: list[bool]
    """For each of `token_ids`: True if the model drew it, False if it was injected."""
    reward: float
    right: bool


@dataclass
class Policy:
    """The model that is trained."""

    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    """Tokens that end a text."""


SAMPLED = Sampling(temperature=1.0, max_tokens=96)
GREEDY = Sampling(temperature=0.001, max_tokens=96)  # so cold that the likeliest token is drawn


def draw_task(words: list[str], seed: int | str) -> Task:
    """Ask for the sum or the difference of two words. The same seed gives the same task."""
    rng = random.Random(seed)
    numbers = rng.sample(range(10, 50), len(words))
    table = dict(zip(words, numbers, strict=True))
    first, second = rng.sample(words, 2)
    sign = rng.choice("+-")
    phrasing = rng.choice(PHRASINGS)
    question = phrasing.format(f"{first} {sign} {second}")
    change = table[second] if sign == "+" else -table[second]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    return Task(messages, answer=table[first] + change, table=table)


def find_call(text: str) -> str | None:
    """Return the first complete call, such as `LOOKUP[blip]`."""
    match = CALL.search(text)
    return match[0] if match else None


def find_answer(text: str) -> int | None:
    """Return the number of the first line that ends with an answer, such as `[ANSWER] 50`."""
    match = ANSWER.search(text)
    return int(match[1]) if match else None


def execute(task: Task, call: str) -> str:
    """Run the tool. Returns its result."""
    word = CALL.search(call)[1]
    return str(task.table.get(word, "ERROR: unknown"))


def score(task: Task, text: str) -> tuple[float, bool]:
    """Return the reward of a text, and whether its answer is right."""
    answer = find_answer(text)
    right = answer == task.answer
    reward = 0.0
    if right:
        reward += 1.0
    if answer is not None:
        reward += 0.2  # right or wrong, it has the form of an answer
    calls = len(CALL.findall(text))
    reward -= 0.1 * max(0, calls - 2)  # a question has two words
    return reward, right


def encode_prompt(tokenizer: PreTrainedTokenizerBase, task: Task) -> list[int]:
    """Return the ids of the chat, up to where the model begins to write."""
    return tokenizer.apply_chat_template(
        task.messages,
        add_generation_prompt=True,
        return_dict=False,  # the token ids alone
    )


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text within the chat."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def draw_token(policy, ids, temperature, rng):
    """Draw the token that follows `ids`. A temperature below 1 makes likely ones likelier."""
    logits = policy.model(torch.tensor([ids])).logits[0, -1]
    chances = (logits / temperature).softmax(-1).tolist()
    return rng.choices(range(len(chances)), weights=chances)[0]


def sample_episode(policy, task, execute, sampling, seed):
    """Sample a response. Returns its token ids, and True where the policy drew one."""
    rng = random.Random(seed)
    prompt = encode_prompt(policy.tokenizer, task)
    ids = []
    sampled = []
    start = 0  # where the text after the last result begins
    while len(ids) < sampling.max_tokens:
        # Generate: the model reads all tokens so far, and the next one is drawn.
        token = draw_token(policy, prompt + ids, sampling.temperature, rng)
        ids.append(token)
        sampled.append(True)
        if token in policy.eos_ids:
            break

        # Sampling stops only once the answer's line is finished: until then more digits may follow.
        text = policy.tokenizer.decode(ids[start:], skip_special_tokens=True)
        finished_lines = text.rpartition("\n")[0]
        if find_answer(finished_lines) is not None:
            break

        # Call: run the tool as soon as the call is complete.
        call = find_call(text)
        if call is not None:
            result = execute(task, call)
            # Inject: the model will read these tokens, but did not draw them.
            result_ids = encode_text(policy.tokenizer, f" -> {result}\n")
            ids.extend(result_ids)
            sampled.extend([False] * len(result_ids))
            start = len(ids)

    # The last result may have passed the limit.
    most = sampling.max_tokens
    return ids[:most], sampled[:most]


@torch.inference_mode()
def play(
    policy: Policy,
    tasks: list[Task],
    sampling: Sampling,
    seed: int,
) -> list[Episode]:
    """Sample and score an episode of each task."""

    def sample(number: int) -> tuple[list[int], list[bool]]:
        return sample_episode(policy, tasks[number], execute, sampling, seed + number)

    # A model may offer to read several texts side by side.
    each = getattr(policy.model, "map", map)
    episodes = []
    for task, (ids, sampled) in zip(tasks, each(sample, range(len(tasks))), strict=True):
        # The tool writes neither calls nor answers, so searching its results, too, does no harm.
        text = policy.tokenizer.decode(ids, skip_special_tokens=True)
        reward, right = score(task, text)
        episode = Episode(
            prompt_ids=encode_prompt(policy.tokenizer, task),
            token_ids=ids,
            sampled=sampled,
            reward=reward,
            right=right,
        )
        episodes.append(episode)
    return episodes


def policy_gradient(policy, episodes, advantages):
    """Return −mean of advantage · log-probability, over all tokens that the policy drew."""
    total = 0.0
    drawn = 0
    for episode, advantage in zip(episodes, advantages, strict=True):
        ids = torch.tensor([episode.prompt_ids + episode.token_ids])
        # The logits at a position are those of the next token: no token follows the last.
        logits = policy.model(ids[:, :-1]).logits[0]  # [T - 1, V]
        logprobs = logits.log_softmax(-1)
        next_ids = ids[0, 1:, None]
        chosen = logprobs.gather(-1, next_ids)[:, 0]  # [T - 1]
        # The last position of the prompt predicts the first token of the response.
        response = chosen[len(episode.prompt_ids) - 1 :]
        mask = torch.tensor(episode.sampled)
        total = total + advantage * response[mask].sum()
        drawn += sum(episode.sampled)
    return -total / drawn


def train(
    policy: Policy,
    new_task: Callable = draw_task,
    sampling: Sampling = SAMPLED,
    steps: int = 8,
    prompts: int = 4,
    group_size: int = 8,
    learning_rate: float = 5e-4,
    seed: int = 0,
) -> None:
    """Train on `prompts` new tasks a step, and a group of `group_size` episodes of each."""
    parameters = list(policy.model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    next_seed = 1_000_000 * (seed + 1)  # above the seeds of evaluate, and of other runs
    for step in range(steps):
        episodes = []
        advantages = []
        for prompt in range(prompts):
            task = new_task(TRAINING, f"{seed} {step} {prompt}")
            group = play(policy, [task] * group_size, sampling, next_seed)
            next_seed += group_size
            rewards = [episode.reward for episode in group]
            # GRPO: how much better an episode is than its group, in standard deviations.
            mean = fmean(rewards)
            deviation = pstdev(rewards)
            for reward in rewards:
                advantages.append((reward - mean) / (deviation + 1e-4))
            episodes.extend(group)

        loss = policy_gradient(policy, episodes, advantages)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0)
        optimizer.step()

        reward = fmean(episode.reward for episode in episodes)
        right = fmean(episode.right for episode in episodes)
        print(f"step {step + 1}   reward {reward:5.2f}   right {right:4.0%}")


def load_policy(folder: str) -> Policy:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    eos_ids = (tokenizer.eos_token_id,)
    return Policy(model, tokenizer, eos_ids)


def evaluate(policy: Policy, tasks: list[Task], sampling: Sampling) -> None:
    """Print how many tasks the policy gets right."""
    episodes = play(policy, tasks, sampling, seed=0)
    right = fmean(episode.right for episode in episodes)
    print(f"held out: {right:.0%} right")


def main() -> None:
    torch.set_num_threads(1)  # fastest for a model this small
    policy = load_policy(FOLDER)
    held_out = [draw_task(HELD_OUT, seed) for seed in range(50)]
    evaluate(policy, held_out, GREEDY)
    train(policy)
    evaluate(policy, held_out, GREEDY)


if __name__ == "__main__":
    main()
