"""Reinforcement learning of tool use in which nobody takes turns: two processes, one file, no framework.

    python examples/my_async_rl.py       in the course's folder, which has a small model; takes a minute

The generator already samples the next batch while the trainer still learns from the last one:

    generator ──► ready: finished groups, at most max_lag versions old when they are used ──► trainer
        ▲                                                                                        │
        └───────────────── weights: one buffer in shared memory, and their version ◄─────────────┘

Task, sampler, reward and loss are those of my_rl.py. New is what stands below them: weights that two
processes share, an object in another process, and the two coroutines that direct both.

Deliberately left out: a correction for old data, which at lag 1 is not needed (notebook 09 measures
when it is), pulls during a batch, and what to do when a process dies (notebook 06).
"""

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import fmean, pstdev
from threading import Lock
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

STEPS = 8
PROMPTS = 4
GROUP_SIZE = 8
LEARNING_RATE = 5e-4
SPAWN = get_context("spawn")
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
    version: int = 0
    """Of the weights that drew it."""


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
        return_dict=False,
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

        # An answer counts once its line is finished: until then more digits may follow.
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
    episodes = []
    for number, task in enumerate(tasks):
        ids, sampled = sample_episode(policy, task, execute, sampling, seed + number)
        # The tool writes neither calls nor answers, so the whole text can be searched for both.
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


def load_policy(folder: str) -> Policy:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    eos_ids = (tokenizer.eos_token_id,)
    return Policy(model, tokenizer, eos_ids)


Group = tuple[list[float], list[Episode]]
"""The episodes of one task, and their rewards."""


@dataclass
class Weights:
    """The newest weights, in memory that both processes see."""

    version: Any
    """A `multiprocessing.Value`. Its lock is held while the weights are written or read."""
    numbers: Any
    """A `RawArray` of floats: all parameters, one after the other."""

    def tensor(self) -> torch.Tensor:
        return torch.frombuffer(self.numbers, dtype=torch.float32)


class Generator:
    """Samples groups, with a copy of the weights. Lives in a process of its own."""

    def __init__(self, weights: Weights, seed: int) -> None:
        torch.set_num_threads(1)
        self.policy = load_policy(FOLDER)
        self.weights = weights
        self.seed = seed
        self.version = 0

    def pull(self) -> int:
        """Copy the newest weights. Returns their version."""
        with self.weights.version.get_lock():  # never half of one version and half of the next
            self.version = self.weights.version.value
            numbers = self.weights.tensor().clone()
        vector_to_parameters(numbers, self.policy.model.parameters())
        return self.version

    def sample(self, numbers: range) -> list[Group]:
        """Sample the groups of these numbers."""
        groups = []
        for number in numbers:
            # The number decides the task and the random draws, whenever the group is sampled.
            step, prompt = divmod(number, PROMPTS)
            task = draw_task(TRAINING, f"{self.seed} {step} {prompt}")
            group = play(
                self.policy,
                tasks=[task] * GROUP_SIZE,
                sampling=SAMPLED,
                seed=1_000_000 * (self.seed + 1) + number * GROUP_SIZE,
            )
            for episode in group:
                episode.version = self.version
            rewards = [episode.reward for episode in group]
            groups.append((rewards, group))
        return groups

    def evaluate(self) -> float:
        """Return the share of right answers to tasks that are not trained on."""
        held_out = [draw_task(HELD_OUT, seed) for seed in range(50)]
        episodes = play(self.policy, held_out, GREEDY, seed=0)
        return fmean(episode.right for episode in episodes)


class Trainer:
    """Takes steps, and publishes the weights after each. Lives in a process of its own."""

    def __init__(self, weights: Weights) -> None:
        torch.set_num_threads(1)
        self.policy = load_policy(FOLDER)
        self.weights = weights
        self.version = 0
        self.parameters = list(self.policy.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=LEARNING_RATE,
            weight_decay=0.0,
        )

    def step(self, episodes: list[Episode], advantages: list[float]) -> str:
        """Take one step. Returns a line on its episodes."""
        loss = policy_gradient(self.policy, episodes, advantages)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, max_norm=1.0)
        self.optimizer.step()

        lag = max(self.version - episode.version for episode in episodes)
        reward = fmean(episode.reward for episode in episodes)
        right = fmean(episode.right for episode in episodes)
        self.version += 1
        return f"  lag {lag}   reward {reward:5.2f}   right {right:4.0%}"

    def publish(self) -> int:
        """Write the weights where the generator reads them. Returns their version."""
        numbers = parameters_to_vector(self.parameters).detach()
        with self.weights.version.get_lock():
            self.weights.tensor().copy_(numbers)
            self.weights.version.value = self.version
        return self.version


class Process:
    """An object in a process of its own: `await process.method(x)` runs its `method(x)` there."""

    def __init__(self, build: Callable, *arguments: Any) -> None:
        self.lock = Lock()
        # On return only the new process has the other end, so a call fails once that process has ended.
        self.pipe, other_end = SPAWN.Pipe()
        process = SPAWN.Process(
            target=serve,
            args=(other_end, build, *arguments),
            daemon=True,
        )
        process.start()

    def __getattr__(self, method: str) -> Callable:
        def call(*arguments):
            return asyncio.to_thread(self.ask, method, arguments)

        return call

    def ask(self, method: str, arguments: tuple) -> Any:
        with self.lock:  # one call at a time, so that each gets its own answer
            self.pipe.send((method, arguments))
            return self.pipe.recv()

    def stop(self) -> None:
        self.pipe.send(None)


def serve(pipe: Any, build: Callable, *arguments: Any) -> None:
    """Build an object, and run the methods that are asked for, until there is None in the pipe."""
    served = build(*arguments)
    while True:
        message = pipe.recv()
        if message is None:
            return
        method, given = message
        call = getattr(served, method)
        result = call(*given)
        pipe.send(result)


def may_start(version, started, per_step, max_lag):
    """Return how many groups may be started now."""
    return (version + max_lag + 1) * per_step - started


async def generate(generator, may_start, ready, newest, news, steps, per_step, max_lag):
    """Start batches as early as the bound on lag allows, with the newest weights."""
    version = 0
    started = 0
    batch = None
    async with asyncio.TaskGroup() as under_way:
        while started < steps * per_step:
            news.clear()  # before we look, so that no news is missed
            if version < newest.version:
                version = await generator.pull()
            count = may_start(version, started, per_step, max_lag)
            if count < 1:
                await news.wait()
                continue
            count = min(count, per_step, steps * per_step - started)
            numbers = range(started, started + count)
            started += count
            sampled = generator.sample(numbers)  # begins when it is awaited
            batch = under_way.create_task(in_order(sampled, batch, ready))


async def in_order(sampled, earlier, ready):
    """Queue a batch when it is sampled and the one before it is in the queue."""
    finished = await sampled
    if earlier is not None:
        await earlier
    for group in finished:
        ready.put_nowait(group)


async def train(trainer, ready, newest, news, steps, per_step, on_step):
    """Train on groups as they come."""
    for step in range(steps):
        episodes = []
        advantages = []
        for _ in range(per_step):
            rewards, group = await ready.get()
            mean = fmean(rewards)
            deviation = pstdev(rewards)
            for reward in rewards:
                advantages.append((reward - mean) / (deviation + 1e-4))
            episodes.extend(group)
        metrics = await trainer.step(episodes, advantages)
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


@dataclass
class Newest:
    version: int = 0
    """The last that the trainer has published."""


async def main(seed: int = 0, max_lag: int = 1) -> float:
    """Train, and print what is learned. Returns the share of right answers at the end."""
    size = load_policy(FOLDER).model.num_parameters()
    weights = Weights(
        version=SPAWN.Value("i", 0),
        numbers=SPAWN.RawArray("f", size),
    )
    trainer = Process(Trainer, weights)
    generator = Process(Generator, weights, seed)
    print(f"held out: {await generator.evaluate():.0%} right")

    ready = asyncio.Queue()  # finished groups
    news = asyncio.Event()  # new weights are out
    newest = Newest()
    sampling = generate(generator, may_start, ready, newest, news, STEPS, PROMPTS, max_lag)
    training = train(trainer, ready, newest, news, STEPS, PROMPTS, print)
    async with asyncio.TaskGroup() as both:  # if one fails, the other is cancelled
        both.create_task(sampling)
        both.create_task(training)

    await generator.pull()
    right = await generator.evaluate()
    print(f"held out: {right:.0%} right")
    generator.stop()
    trainer.stop()
    return right


if __name__ == "__main__":
    asyncio.run(main())
