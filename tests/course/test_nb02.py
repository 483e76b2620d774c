"""What serves notebook 02: the first greeters stay, and a wrong step is told with what was misunderstood."""

from __future__ import annotations

from zorplex_rl.course import nb02


class Procs:
    def spawn(self, name, actor_class):
        return name, actor_class


def test_greeters_are_spawned_once_whatever_the_class_is_now():
    procs, others = Procs(), Procs()
    assert nb02.spawned_once(procs, int) == nb02.spawned_once(procs, str) == ("greeters", int)
    assert nb02.spawned_once(others, str) == ("greeters", str), "other processes have none yet"
