"""As prefix.py, with half of the prompts on each of two cores: the gradients meet in shared memory."""

import math
import multiprocessing
import os
import signal

import torch
from prefix import advantages_of

from zorplex_rl.learning.batches import collate
from zorplex_rl.learning.learner import schedule, token_logprobs
from zorplex_rl.learning.train_simple import play
from zorplex_rl.task.environment import Zorplex

PROCESSES = 2
PROMPTS = 8
GROUP_SIZE = 8
LEARNING_RATE = 5e-4
WARMUP_STEPS = 3
SHARPENING = 0.2


def train(policy, tasks, seed, steps=40, sharpen_from=32):
    parameters = list(policy.model.parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0)
    gain = policy.model.base_model.norm.weight
    mean = 0.0
    square = 0.0
    # A row for each process: its number of tokens, then its gradients.
    table = torch.zeros(PROCESSES, 1 + sum(p.numel() for p in parameters)).share_memory_()
    barrier = multiprocessing.get_context("fork").Barrier(PROCESSES)
    child = os.fork()
    rank = 0 if child else 1
    try:
        for step in range(steps):
            numbers = range(PROMPTS * step + rank, PROMPTS * (step + 1), PROCESSES)
            copies = [tasks[number % len(tasks)] for number in numbers for _ in range(GROUP_SIZE)]
            episodes = play(policy, Zorplex(), copies, seed + (PROCESSES * step + rank) * len(copies))

            advantages = []
            for start in range(0, len(episodes), GROUP_SIZE):
                advantages += advantages_of(episodes[start : start + GROUP_SIZE])
            teaching = [(e, values) for e, values in zip(episodes, advantages, strict=True) if any(values)]

            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            for part in collate([episode for episode, _ in teaching], [values for _, values in teaching], 8192):
                logp, _ = token_logprobs(policy, part)
                loss = -(part.advantage * logp * part.mask).sum()
                loss.backward()

            table[rank, 0] = sum(sum(episode.sampled) for episode in episodes)
            table[rank, 1:] = torch.cat([parameter.grad.flatten() for parameter in parameters])
            barrier.wait()
            total = table.sum(0)
            barrier.wait()
            grads = (total[1:] / total[0]).split([parameter.numel() for parameter in parameters])
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad.view_as(parameter)

            # The logits are linear in the gain of the last norm: the gradient of log(scale) is Σ gain · gradient.
            slope = float((gain.detach() * gain.grad).sum())
            mean = 0.9 * mean + 0.1 * slope
            square = 0.95 * square + 0.05 * slope**2
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * schedule(step, WARMUP_STEPS, steps)
            optimizer.step()
            if step >= sharpen_from:
                # A step of Adam on log(scale).
                move = mean / (1 - 0.9 ** (step + 1)) / (math.sqrt(square / (1 - 0.95 ** (step + 1))) + 1e-12)
                gain.data.mul_(math.exp(-SHARPENING * move))
            if rank == 0:
                yield
    finally:
        # Only the first process returns to the program that called it.
        if rank == 1:
            os._exit(0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
