"""Explain the terms of the course, each in one or two sentences: the only source of the glossary page and of ``lesson.term``.

A term is here if a notebook uses it; a test holds that. Write it as it stands in a sentence: small letters, singular.
"""

from __future__ import annotations

import re

GLOSSARY = {
    # The task and the policy
    "policy": "The model that is trained, seen as a rule: for each context it gives every next token a probability.",
    "token": "A piece of text, often part of a word. A model reads and writes numbers that stand for tokens.",
    "episode": "One attempt at one task: the prompt, all tokens that the policy wrote, what tools answered, and the reward.",
    "rollout": "Sampling episodes from a policy, tool calls included.",
    "temperature": "A number that divides the scores of all next tokens before sampling. Below 1 the likely ones become more likely.",
    "held-out": "Kept away from training, so that accuracy on it says what the policy can do with new tasks.",
    "reward": "The number that says how good an episode was. Here a program computes it from the text of the episode.",
    "pass@k": "The chance that at least one of k attempts at a task is right.",
    "reward hacking": "Earning the reward without doing the task that it was meant for.",
    "RLHF": "Reinforcement learning from human feedback: a reward model learns which answers people prefer, and the policy is trained on its scores.",
    "loss mask": "The list that says which tokens count in the loss: those that the policy sampled, and not those of a tool.",
    # Policy gradients
    "group": "Several episodes of the same prompt. Their mean reward tells how hard the prompt is.",
    "advantage": "How much better an episode was than expected, for example than the mean of its group. Its sign says which way to push.",
    "gradient": "For each weight, how fast the loss changes with it. An optimizer steps against it.",
    "policy gradient": "The gradient of the mean reward: the log-probability of each sampled token, weighted by its advantage.",
    "REINFORCE": "The plainest policy gradient: raise the log-probability of what was sampled, in proportion to its advantage.",
    "PPO": "A policy gradient that stops pushing a token once its probability has changed by more than a set ratio.",
    "GRPO": "PPO whose advantage is the reward compared with the other episodes of the same prompt, without a second model.",
    "clipping": "Ignoring the gradient of a token whose probability has already moved further than a set ratio.",
    "log-probability": "The logarithm of the probability that a model gave to a token. Those of a text add up.",
    "entropy": "How undecided the policy is about the next token, in nats. 0 means that it is sure.",
    "reference": "A copy of the policy as it was before training. A penalty keeps the trained one near it.",
    # Stale data
    "behaviour policy": "The policy that sampled an episode. With stale data it is older than the policy that learns from it.",
    "policy version": "A counter of training steps. Version 7 has the weights after the seventh step.",
    "lag": "How many versions the trainer is ahead of the policy that sampled an episode.",
    "staleness": "The same as lag, said of data: how old the policy was that wrote them.",
    "on-policy": "Learning from episodes that the present policy sampled itself.",
    "off-policy": "Learning from episodes that another policy sampled, for example an older version.",
    "importance ratio": "The probability of a token under the policy that learns, divided by that under the policy that sampled it.",
    "truncated importance sampling": "Weighting each token by its importance ratio, with a limit on the weight.",
    "decoupled PPO": "PPO with two ratios: one corrects for the age of the data, the other limits the step.",
    "effective sample size": "How many fresh episodes tell you as much as a reweighted batch. It falls when few weights dominate.",
    # Who does what
    "generator": "The process that samples episodes with a copy of the weights.",
    "trainer": "The process that holds the optimizer and makes new versions of the weights.",
    "replay buffer": "Where finished groups wait for the trainer.",
    "controller": "The process that starts the others and says who does what next.",
    "straggler": "The episode or process that is last, while all others wait for it.",
    "checkpoint": "A copy of weights and optimizer on disk, from which training can go on after a crash.",
    # Actors
    "actor": "An object that others reach only by messages, usually in a process of its own. It works on one at a time, unless it says otherwise.",
    "mailbox": "The queue of messages that an actor has not worked on yet.",
    "deadlock": "Two or more that wait for each other, so that none of them ever goes on.",
    "endpoint": "A method of an actor that others may call by a message.",
    "mesh": "Processes or actors in a grid with named axes. One call can reach all of them, or a slice.",
    "host mesh": "Machines, on each of which processes can be started.",
    "process mesh": "Processes in a grid with named axes. Actors are put into all of them at once.",
    "SPMD": "Single program, multiple data: every process runs the same code on other data.",
    "DDP": "PyTorch's data parallel training: every process has the whole model and a part of the batch, and gradients are averaged.",
    "message": "What one process sends to another. The receiver gets a copy.",
    # Services
    "service": "Several replicas behind one name. A request goes to one that is free.",
    "replica": "One of several processes that can do the same work.",
    "router": "The rule that picks the replica for a request.",
    "session": "Several requests that go to the same replica in their order, because it keeps something for them.",
    "registry": "The actor that finds a service by its name.",
    "probe": "A question that only asks whether a process still answers.",
    "idempotent": "Safe to do twice: the second time changes nothing. Only such a request may be sent again after a crash.",
    "fault": "Something that goes wrong: an exception, a process that dies, or one that no longer answers.",
    "supervision": "Watching processes and telling those who wait for them when they are gone.",
    "supervisor": "The part of a program that probes workers and replaces those that have failed.",
    "fencing": "Making sure that a process that was given up can do nothing more, before another takes its place.",
    "lease": "The right to go on working for some seconds. Who does not hear in time that it was renewed stops by itself.",
    "back-pressure": "Telling callers to wait or come back later when a queue is full, so that it does not grow without end.",
    "saturation": "The state in which a service works as fast as it can: more load makes nothing faster, only the waits longer.",
    "hysteresis": "A gap between the rule for going up and the rule for going down, so that a load that swings does not change the size each time.",
    "back-off": "Waiting longer after each failure before the next attempt.",
    "jitter": "A random part of a wait, so that those who failed together do not come back together.",
    "spare": "A process that is started and idle, ready to take the place of one that dies.",
    # Weights on the way
    "publish": "To make a new version of the weights readable for others.",
    "pull": "To fetch the newest published version of the weights.",
    "control plane": "The small messages that say what to do.",
    "data plane": "The path that the bytes take.",
    "RDMA": "Remote direct memory access: the network card reads another machine's memory, and that machine's processor does nothing.",
    "one-sided": "Said of a read or write for which the other process need not run any code.",
    "handle": "A small value that says where a buffer is and lets others read it.",
    "staging buffer": "Memory of fixed place and size into which all weights are copied before they travel.",
    "ring": "Several buffers that are written in turn, so that a reader has time while the next version is written.",
    "slot": "A place for one of several things at a time: a buffer of the ring, or a row of the running batch.",
    "torn read": "A copy whose first part is of one version and whose last part is of the next.",
    "seqlock": "A counter beside the data that is odd during a write. A reader compares it before and after, and reads again if it changed.",
    "pinned": "Said of memory that stays at its physical address, so that a card can copy from it without the processor.",
    "transport": "A way to move the bytes from one process to another: a message, shared memory, RDMA.",
    # Sharded tensors
    "shard": "The part of a tensor that one process holds.",
    "rank": "The number of a process within its group.",
    "placement": "How a tensor lies on a mesh: cut along a dimension, whole on every rank, or waiting to be summed.",
    "semi-synchronous training": "Training in rounds: each learner takes steps alone, then the changes of those who answer in time are averaged.",
    "column-parallel": "Said of a layer whose outputs are divided among the ranks: each computes some of them from all inputs.",
    "tensor parallel": "Cutting each layer's matrices over several processes, which compute one token together.",
    "FSDP": "Fully sharded data parallel: each process holds a part of the weights and gathers the rest when it needs them.",
    "ZeRO": "Dividing what each rank of data parallelism keeps: first the optimizer's state, then gradients, then weights.",
    "DTensor": "PyTorch's tensor that knows its mesh and its placement.",
    "collective": "An operation in which all processes of a group take part, such as a sum over all.",
    # Budgets
    "moment": "A running mean that AdamW keeps for each parameter, one of its gradient and one of the gradient's square.",
    "master weights": "A float32 copy of 16-bit weights, to which the optimizer's small steps are added.",
    "activation": "What a layer has computed for a token. Autograd keeps it until the backward pass has used it.",
    "key-value cache": "The keys and values of all earlier tokens in every layer, kept so that a new token need not compute them again.",
    "grouped-query attention": "Attention in which several heads of queries share one head of keys and values.",
    "arithmetic intensity": "Operations for each byte that is read from memory. Where it is low, reading decides how long a computation takes.",
}  # fmt: skip


def anchor(term: str) -> str:
    """Return the id of a term on the glossary page."""
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def entry_of(shown: str) -> str | None:
    """Return the glossary's term for a word as it stands in a text (capital letter, plural), or None.

    >>> entry_of("Meshes"), entry_of("Policy versions"), entry_of("walrus")
    ('mesh', 'policy version', None)
    """
    known = {term.lower(): term for term in GLOSSARY}
    word = " ".join(shown.lower().split())
    singular = (word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y")
    return next((known[form] for form in singular if form in known), None)
