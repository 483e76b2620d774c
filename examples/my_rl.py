"""Teach a language model to use a tool, by reinforcement learning: one process, one file, no
framework.

Run it in the course's folder, which has a small model: half a minute. Or teach a real one, on two
cores and in two minutes: `zorplex-rl policy get smollm2`, and then `my_rl.py --policy smollm2`.

Each word has a secret number, and only a tool knows it. What stands behind an arrow is fed by the
loop; the model draws the rest:
    LOOKUP[blip] -> 32 ⏎ LOOKUP[mip] -> 18 ⏎ 32+18=50 ⏎ [ANSWER] 50 ⏎
"""

import os
import random
import re
import sys
from statistics import fmean, pstdev
from types import SimpleNamespace as Record

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

TRAINING = "blip clup faz frub gorn hax klem mip norf prub rilk snib ulf wub zam zork".split()
HELD_OUT = "bonk drim flim glop grix jint lurp nask plek quon skob trun vom yim zil zorp".split()
SYSTEM = "Words have hidden values. LOOKUP[word] tells one. Do the arithmetic. End with [ANSWER] and the integer."
SAMPLED, GREEDY, SHORT = (Record(temperature=t, max_tokens=m) for t, m in ((1.0, 96), (0.001, 96), (1.0, 26)))
CALL, ANSWER = re.compile(r"LOOKUP\[([^\[\]\n]*)\]"), re.compile(r"\[ANSWER\] *(-?[0-9]+) *$", re.MULTILINE)
find_call, find_answer = CALL.search, ANSWER.search
SHOTS = ("What is wug?", "LOOKUP[wug] -> 35\n[ANSWER] 35", "Tell the value of gazz.", "LOOKUP[gazz] -> 30\n[ANSWER] 30")
EXAMPLES = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, SHOTS, strict=True)]


# With worked examples, for a model that was not made for this, a task asks for one word.
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


class Reader:
    """The model, which reads of each text only what its last one did not begin with."""

    def __init__(self, model):
        self.model, self.parameters, self.learns = model, model.parameters, None

    def __call__(self, ids):
        if self.learns != torch.is_grad_enabled():  # the weights have changed, or a gradient is wanted: read all anew
            self.learns, self.cache, self.text = torch.is_grad_enabled(), DynamicCache(), ids[:, :0]
        known, length = self.text.shape[1], min(self.text.shape[1], ids.shape[1] - 1)
        same = int((ids[0, :length] == self.text[0, :length]).cumprod(0).sum())
        if same < known:
            self.cache.crop(same - known)
        new = self.model(ids[:, same:], None, None, self.cache).logits  # reads the cache, and adds to it
        self.text, self.logits = ids, torch.cat([self.logits[:, :same], new], 1) if same else new
        return Record(logits=self.logits)


def train(policy, steps=8, prompts=4, group_size=8, learning_rate=5e-4, seed=0, sampling=SAMPLED, examples=()):
    optimizer = torch.optim.AdamW(policy.model.parameters(), learning_rate, weight_decay=0.0)
    for step in range(steps):
        tasks = [draw_task(TRAINING, f"{seed} {step} {n // group_size}", examples) for n in range(prompts * group_size)]
        episodes = play(policy, tasks, sampling, seed=1_000_000 * (seed + 1) + step * len(tasks))
        rewards = [episode.reward for episode in episodes]
        groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
        advantages = [(reward - fmean(group)) / (pstdev(group) + 1e-4) for group in groups for reward in group]
        optimizer.zero_grad()
        policy_gradient(policy, episodes, advantages).backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step + 1}   reward {fmean(rewards):5.2f}   right {fmean(e.right for e in episodes):4.0%}")


if __name__ == "__main__":
    folder, examples, exam, settings = "zorplex_rl/policy/embedded", (), GREEDY, {}
    if sys.argv[1:] == ["--policy", "smollm2"]:
        cache = os.getenv("ZORPLEX_CACHE") or (os.getenv("XDG_CACHE_HOME") or "~/.cache") + "/zorplex-rl"
        folder = os.path.expanduser(cache) + "/smollm2"
        examples, exam, settings = EXAMPLES, SHORT, {"steps": 3, "prompts": 2, "learning_rate": 5e-5, "sampling": SHORT}
    torch.set_num_threads(2 if examples else 1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).float(), AutoTokenizer.from_pretrained(folder)
    policy = Record(model=Reader(model.eval()), tokenizer=tokenizer, eos_ids=(tokenizer.eos_token_id,))
    held_out = [draw_task(HELD_OUT, number, examples) for number in range(16 if examples else 50)]
    print(f"held out: {fmean(e.right for e in play(policy, held_out, exam, seed=0)):.0%} right")
    train(policy, **settings, examples=examples)
    print(f"held out: {fmean(e.right for e in play(policy, held_out, exam, seed=0)):.0%} right")
