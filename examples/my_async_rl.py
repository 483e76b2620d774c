"""Reinforcement learning of tool use in which nobody takes turns: two processes, no framework.

Run it in the course's folder, which has a small model; it takes a minute. From my_rl.py:
    generator ──► ready: finished groups, at most max_lag versions old when they are used ──► trainer
        ▲                                                                                        │
        └───────────────────── weights: one buffer, and the number of its version ◄──────────────┘
"""

import asyncio
import random
import re
from multiprocessing import get_context
from statistics import fmean, pstdev
from threading import Lock
from types import SimpleNamespace as Record

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, PROMPTS, GROUP_SIZE, LEARNING_RATE, SPAWN = 8, 4, 8, 5e-4, get_context("spawn")
TRAINING = "blip clup faz frub gorn hax klem mip norf prub rilk snib ulf wub zam zork".split()
HELD_OUT = "bonk drim flim glop grix jint lurp nask plek quon skob trun vom yim zil zorp".split()
SYSTEM = "Words have hidden values. LOOKUP[word] tells one. Do the arithmetic. End with [ANSWER] and the integer."
SAMPLED, GREEDY = (Record(temperature=t, max_tokens=96) for t in (1.0, 0.001))
CALL, ANSWER = re.compile(r"LOOKUP\[([^\[\]\n]*)\]"), re.compile(r"\[ANSWER\] *(-?[0-9]+) *$", re.MULTILINE)
find_call, find_answer = CALL.search, ANSWER.search


def draw_task(words, seed, examples=()):
    rng = random.Random(seed)
    table = dict(zip(words, rng.sample(range(10, 50), len(words)), strict=True))
    (one, *others), sign = rng.sample(words, 1 if examples else 2), rng.choice("+-")
    question = rng.choice(("What is {}?", "Tell the value of {}.", "{} = ?")).format(f" {sign} ".join([one, *others]))
    answer = table[one] + sum(int(f"{sign}{table[other]}") for other in others)
    return Record(question=question, answer=answer, table=table, examples=examples)


def execute(task, call):
    return str(task.table.get(call[1], "ERROR: unknown"))


def encode_prompt(tokenizer, task):
    messages = [{"role": "system", "content": SYSTEM}, *task.examples, {"role": "user", "content": task.question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def encode_text(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def sample_episode(policy, task, execute, sampling, seed):
    rng, prompt = random.Random(seed), encode_prompt(policy.tokenizer, task)
    ids, sampled, start = [], [], 0
    while len(ids) < sampling.max_tokens:
        # Generate: the model reads all tokens so far, and the next one is drawn.
        logits = policy.model(torch.tensor([prompt + ids])).logits[0, -1]
        chances = (logits / sampling.temperature).softmax(-1).tolist()
        ids, sampled = ids + rng.choices(range(len(chances)), chances), [*sampled, True]
        text = policy.tokenizer.decode(ids[start:], skip_special_tokens=True)
        # More digits may follow in the last line, so it is not read yet.
        if ids[-1] in policy.eos_ids or find_answer(text.rpartition("\n")[0]) is not None:
            break
        # Call: run the tool as soon as the call is complete.
        if call := find_call(text):
            result = encode_text(policy.tokenizer, f" -> {execute(task, call)}\n")
            # Inject: the model will read these tokens, and did not draw them.
            ids, sampled = ids + result, sampled + [False] * len(result)
            start = len(ids)
    return ids[: sampling.max_tokens], sampled[: sampling.max_tokens]


@torch.inference_mode()
def play(policy, tasks, sampling, seed):
    episodes = []
    for number, task in enumerate(tasks):
        ids, sampled = sample_episode(policy, task, execute, sampling, seed + number)
        # The tool writes neither calls nor answers, so both can be looked for in the whole text.
        text = policy.tokenizer.decode(ids, skip_special_tokens=True)
        answer, calls = find_answer(text), len(CALL.findall(text))
        right = answer is not None and int(answer[1]) == task.answer
        reward = right + 0.2 * (answer is not None) - 0.1 * max(0, calls - 2)
        prompt = encode_prompt(policy.tokenizer, task)
        episodes.append(Record(prompt_ids=prompt, token_ids=ids, sampled=sampled, reward=reward, right=right))
    return episodes


def policy_gradient(policy, episodes, advantages):
    total = 0.0
    for episode, advantage in zip(episodes, advantages, strict=True):
        ids = torch.tensor([episode.prompt_ids + episode.token_ids])
        # The logits at a position are those of the next token.
        logp = policy.model(ids[:, :-1]).logits[0].log_softmax(-1)
        chosen = logp.gather(-1, ids[0, 1:, None])[len(episode.prompt_ids) - 1 :, 0]
        total = total + advantage * chosen[torch.tensor(episode.sampled)].sum()
    return -total / sum(sum(episode.sampled) for episode in episodes)


def load_policy(folder="zorplex_rl/policy/embedded"):
    torch.set_num_threads(1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    return Record(model=model, tokenizer=tokenizer, eos_ids=(tokenizer.eos_token_id,))


class Generator:
    def __init__(self, weights, seed):
        self.policy, self.weights, self.seed, self.version = load_policy(), weights, seed, 0

    def pull(self):
        with self.weights.version.get_lock():  # never half of one version and half of the next
            self.version = self.weights.version.value
            numbers = torch.frombuffer(self.weights.numbers, dtype=torch.float32).clone()
        vector_to_parameters(numbers, self.policy.model.parameters())
        return self.version

    def sample(self, numbers):
        groups = []
        for number in numbers:  # it decides a group's task and draws, whoever samples the group and when
            task = draw_task(TRAINING, f"{self.seed} {number // PROMPTS} {number % PROMPTS}")
            group = play(self.policy, [task] * GROUP_SIZE, SAMPLED, 1_000_000 * (self.seed + 1) + number * GROUP_SIZE)
            for episode in group:
                episode.version = self.version
            groups.append(([episode.reward for episode in group], group))
        return groups

    def test(self):
        held_out = [draw_task(HELD_OUT, number) for number in range(50)]
        return fmean(episode.right for episode in play(self.policy, held_out, GREEDY, seed=0))


class Trainer:
    def __init__(self, weights):
        self.policy, self.weights, self.version = load_policy(), weights, 0
        self.optimizer = torch.optim.AdamW(self.policy.model.parameters(), LEARNING_RATE, weight_decay=0.0)

    def step(self, episodes, advantages):
        lag, right = max(self.version - e.version for e in episodes), fmean(e.right for e in episodes)
        self.optimizer.zero_grad()
        # At lag 1 it learns without a correction factor for old data. Notebook 09 measures when it does not.
        policy_gradient(self.policy, episodes, advantages).backward()
        torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), 1.0)
        self.optimizer.step()
        self.version += 1
        return f"  lag {lag}   reward {fmean(e.reward for e in episodes):5.2f}   right {right:4.0%}"

    def publish(self):
        with self.weights.version.get_lock():
            self.weights.version.value, now = self.version, parameters_to_vector(self.policy.model.parameters())
            torch.frombuffer(self.weights.numbers, dtype=torch.float32).copy_(now.detach())
        return self.version


# An object in a process of its own: `await process.method(x)` runs its `method(x)` there.
class Process:
    def __init__(self, build, *arguments):
        self.turn = Lock()
        self.pipe, theirs = SPAWN.Pipe()  # their end is closed here on return: a call to a dead process fails
        SPAWN.Process(target=serve, args=(theirs, build, *arguments), daemon=True).start()

    def __getattr__(self, method):
        return lambda *arguments: asyncio.to_thread(self.ask, method, arguments)

    def ask(self, *message):
        with self.turn:  # one call at a time: the answers come back in the order of the questions
            self.pipe.send(message)
            return self.pipe.recv()


def serve(pipe, build, *arguments):
    served = build(*arguments)
    for method, given in iter(pipe.recv, None):
        pipe.send(getattr(served, method)(*given))


def may_start(version, started, per_step, max_lag):
    return (version + max_lag + 1) * per_step - started


async def generate(generator, may_start, ready, newest, news, steps, per_step, max_lag):
    version, started, batch = 0, 0, None
    async with asyncio.TaskGroup() as under_way:
        while started < steps * per_step:
            news.clear()  # before we look, so that no news is missed
            if version < newest.version:
                version = await generator.pull()
            count = may_start(version, started, per_step, max_lag)
            if count < 1:
                await news.wait()
                continue
            first = started
            started = min(first + min(count, per_step), steps * per_step)
            sampled = generator.sample(range(first, started))  # begins when it is awaited
            batch = under_way.create_task(in_order(sampled, batch, ready))


async def in_order(sampled, earlier, ready):
    finished = await sampled
    if earlier is not None:
        await earlier
    for group in finished:
        ready.put_nowait(group)


async def train(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        episodes = [episode for _, group in batch for episode in group]
        advantages = []
        for rewards, _ in batch:
            advantages += [(r - fmean(rewards)) / (pstdev(rewards) + 1e-4) for r in rewards]
        metrics = await trainer.step(episodes, advantages)
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


async def main(seed=0, max_lag=1):
    weights = Record(version=SPAWN.Value("i", 0), numbers=SPAWN.RawArray("f", load_policy().model.num_parameters()))
    trainer, generator = Process(Trainer, weights), Process(Generator, weights, seed)
    print(f"held out, greedy: {await generator.test():.0%} right")
    ready, news = asyncio.Queue(), asyncio.Event()  # finished groups; new weights are out
    newest = Record(version=0)  # as far as the trainer has published
    async with asyncio.TaskGroup() as both:  # if one fails, the other is cancelled
        both.create_task(generate(generator, may_start, ready, newest, news, STEPS, PROMPTS, max_lag))
        both.create_task(train(trainer, ready, newest, news, STEPS, PROMPTS, print))
    await generator.pull()
    print(f"held out, greedy: {(learned := await generator.test()):.0%} right")
    trainer.pipe.send(None), generator.pipe.send(None)
    return learned


if __name__ == "__main__":
    asyncio.run(main())
