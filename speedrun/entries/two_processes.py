"""Like prefix.py, with half of the prompts on each of two cores. The gradients meet in shared memory."""

import multiprocessing
import os
import signal

import torch
from baseline import count_sampled
from prefix import Prefix

PROCESSES = 2


class TwoProcesses(Prefix):
    def train(self):
        """Train in two processes. Only the first returns to the program that called it."""
        self.sizes = [parameter.numel() for parameter in self.parameters]
        # A row for each process: its number of tokens, then its gradients.
        self.table = torch.zeros(PROCESSES, 1 + sum(self.sizes))
        self.table.share_memory_()
        context = multiprocessing.get_context("fork")
        self.barrier = context.Barrier(PROCESSES)
        child = os.fork()
        self.rank = 0 if child else 1
        try:
            for _ in super().train():
                if self.rank == 0:
                    yield
        finally:
            if self.rank == 1:
                os._exit(0)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def compute_gradient(self, step):
        """Leave the gradient of both halves in the parameters of each process."""
        episodes = self.sample(step, self.rank, PROCESSES)
        self.backward(episodes, divisor=1)
        gradients = [parameter.grad.flatten() for parameter in self.parameters]
        row = self.table[self.rank]
        row[0] = count_sampled(episodes)
        row[1:] = torch.cat(gradients)
        self.barrier.wait()
        total = self.table.sum(0)
        self.barrier.wait()
        mean = total[1:] / total[0]
        gradients = mean.split(self.sizes)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)


def train(policy, tasks, seed):
    return TwoProcesses(policy, tasks, seed).train()
