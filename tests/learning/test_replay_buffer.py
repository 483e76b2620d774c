"""The replay buffer under every interleaving that hypothesis can think of."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from zorplex_rl.learning.replay_buffer import ReplayBuffer


class AnyInterleaving(RuleBasedStateMachine):
    """Several generators and a trainer acting in any order; generators may die, send twice, or hold
    back for long."""

    @initialize(
        step=st.integers(1, 4), lag=st.integers(0, 4), steps=st.integers(1, 6), generators=st.integers(1, 3)
    )  # fmt: skip
    def start(self, step, lag, steps, generators):
        self.buffer = ReplayBuffer(step, lag, step * steps)
        self.lag, self.total = lag, step * steps
        self.published = 0
        self.versions = [0] * generators
        self.holding = [{} for _ in range(generators)]
        self.trained = []
        self.delivered = []
        self.sampled_with = {}

    @rule(data=st.data())
    def pull(self, data):
        self.versions[data.draw(st.integers(0, len(self.versions) - 1))] = self.published

    @rule(data=st.data(), count=st.integers(1, 5))
    def start_groups(self, data, count):
        generator = data.draw(st.integers(0, len(self.versions) - 1))
        version = self.versions[generator]
        for number in self.buffer.admit(version, count):
            self.holding[generator][number] = version

    @rule(data=st.data())
    def deliver(self, data):
        generator = data.draw(st.integers(0, len(self.versions) - 1))
        if self.holding[generator]:
            number = data.draw(st.sampled_from(sorted(self.holding[generator])))
            version = self.holding[generator].pop(number)
            assert self.buffer.add(number, version)
            self.delivered.append(number)
            self.sampled_with[number] = version

    @rule(data=st.data())
    def die(self, data):
        generator = data.draw(st.integers(0, len(self.versions) - 1))
        self.buffer.abandon(list(self.holding[generator]))
        self.holding[generator].clear()

    @rule(data=st.data())
    def deliver_something_unexpected(self, data):
        waiting = {number for held in self.holding for number in held}
        number = data.draw(st.integers(0, self.total + 2))
        if number not in waiting:
            refused = self.buffer.counters.refused
            assert not self.buffer.add(number, self.published)
            assert self.buffer.counters.refused == refused + 1

    @rule()
    def train(self):
        batch = self.buffer.take()
        if batch is not None:
            assert len(batch) == self.buffer.groups_per_step
            for number in batch:
                assert 0 <= self.published - self.sampled_with[number] <= self.lag
            self.trained += batch
            self.published += 1

    @invariant()
    def nothing_is_trained_on_twice_and_all_is_counted(self):
        if not hasattr(self, "buffer"):
            return
        assert len(set(self.trained)) == len(self.trained)
        counters = self.buffer.counters
        on_their_way = sum(map(len, self.holding))
        assert counters.trained == len(self.trained)
        assert (
            counters.started
            == counters.trained
            + counters.abandoned
            + counters.stale
            + on_their_way
            + len(self.buffer._ready)
        )
        assert counters.stale == 0

    def teardown(self):
        """From wherever the interleaving has led, a fair schedule finishes: no deadlock, and every
        group exactly once."""
        if not hasattr(self, "buffer"):
            return
        for _ in range(20 * self.total + 20):
            for generator in range(len(self.versions)):
                self.versions[generator] = self.published
                for number in list(self.holding[generator]):
                    self.sampled_with[number] = self.holding[generator].pop(number)
                    self.buffer.add(number, self.sampled_with[number])
                for number in self.buffer.admit(self.versions[generator], 2):
                    self.holding[generator][number] = self.versions[generator]
            self.train()
        assert self.buffer.finished
        assert sorted(self.trained) == list(range(self.total))


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(lag=st.integers(0, 5), step=st.integers(1, 6))
def test_a_generator_may_run_ahead_by_exactly_the_lag(lag, step):
    buffer = ReplayBuffer(step, lag, 1000)
    assert len(buffer.admit(0, 1000)) == step * (lag + 1)


@given(step=st.integers(1, 9), share=st.integers(1, 9))
def test_a_share_no_larger_than_what_is_left_of_a_step_holds_groups_of_one_step(step, share):
    buffer, begun = ReplayBuffer(step, 3, 4 * step), []
    while numbers := buffer.admit(0, min(share, buffer.left_of_step)):
        assert len({number // step for number in numbers}) == 1
        begun += numbers
    assert begun == list(range(4 * step))
    buffer.abandon([0, 3 * step])
    assert buffer.left_of_step == 2


def test_a_straggler_does_not_stop_the_trainer_before_its_deadline():
    buffer = ReplayBuffer(1, 1, 10)
    slow, quick = buffer.admit(0, 2)
    buffer.add(quick, 0)
    assert buffer.take() == [quick]
    (third,) = buffer.admit(1, 5)
    buffer.add(third, 1)
    assert buffer.take() is None, "the straggler would be too old after this step"
    buffer.add(slow, 0)
    assert buffer.take() == [slow]


def test_a_stale_group_is_never_trained_on_but_counted_and_generated_again():
    buffer = ReplayBuffer(1, 0, 2)
    (number,) = buffer.admit(0, 1)
    buffer.add(number, -1)  # older than it was said to be
    assert buffer.take() is None
    assert buffer.counters.stale == 1
    assert buffer.admit(0, 1) == [number]


def test_a_restored_buffer_generates_again_what_was_on_its_way_or_taken_for_a_step_that_is_not_done():
    buffer = ReplayBuffer(2, 1, 8)
    for number in buffer.admit(0, 4):
        buffer.add(number, 0)
    buffer.take()
    buffer.forget_taken(1)
    assert buffer.take() == [2, 3]
    assert buffer.admit(1, 1) == [4]
    state = buffer.state_dict()
    assert (state["version"], state["again"], state["counters"]["trained"]) == (1, [2, 3, 4], 2)
    restored, trained = ReplayBuffer(2, 1, 8), [0, 1]
    restored.load_state_dict(state)
    while not restored.finished:
        for number in restored.admit(restored.version, 8):
            restored.add(number, restored.version)
        trained += restored.take()
    assert trained == list(range(8))
    counters = restored.counters
    assert counters.started == counters.trained + counters.abandoned


def test_the_groups_with_the_oldest_weights_are_trained_on_first():
    buffer = ReplayBuffer(2, 4, 100)
    versions = [1, 0, 2, 0, 2, 1]
    for number, version in enumerate(versions):
        assert buffer.admit(version, 1) == [number]
    for number, version in enumerate(versions):
        buffer.add(number, version)
    assert [buffer.take() for _ in range(3)] == [[1, 3], [0, 5], [2, 4]]
