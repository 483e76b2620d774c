"""Which tests are quick: they start no process and no browser, and all of them together take less
than a minute. ``pytest -m quick``

``conftest.py`` marks them, and a quick test that starts a process fails.
"""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = {
    ".": "config documents house run_folder timeline walk",
    "cli": "cli live open",
    "training": "devices run_log",
    "training/hosts": "clusters",
    "services": "certificates own_folder router",
    "simulation": "lag recorded",
    "sizing": "allocation fit memory model_shape run_time step_time",
    "drawing": "plots",
    "learning": "alarm checkpoint learning_signal losses referee replay_buffer",
    "weights": "fence ring",
    "weights/reshard": "plan sharded_model transfer",
    "policy": "evaluate",
    "task": "environment parser reward_hacks rewards specs",
    "course": "laboratory stacks",
    "course/lesson": "exercise glossary keep_open markup",
    "course/figures": "actor_drawings figures loop_drawing",
    "course/widgets": "drawn_widgets",
}
"""By folder, without ``test_`` and ``.py``; beside them, the examples in the package's
docstrings."""
SLOWER = """
test_the_diagnostic_of_a_run_is_what_the_trials_of_even_seeds_chose_before_those_that_judge_it
test_what_cannot_be_stopped_does_not_hold_the_notebook
test_every_bold_term_of_a_notebook_is_explained
test_whatever_the_text_it_is_shown_and_nothing_else_happens
test_no_constant_answer_is_right_for_more_than_six_percent_even_if_it_is_chosen_afterwards
test_two_hundred_tasks_hold_at_least_190_different_pairs_of_question_and_table
test_the_best_constant_of_the_training_answers_earns_a_quarter_of_a_point_at_most
test_a_plan_fills_every_shard_and_moves_exactly_the_minimum
test_an_interval_of_95_percent_covers_the_share_in_more_than_90_of_100_cases_everywhere
test_a_hundred_thousand_spans_make_a_figure_that_a_page_can_hold
test_size_measures_this_machine_and_tells_the_time_of_a_step
test_this_machine_takes_longer_for_a_larger_model
test_a_configuration_of_no_model_is_refused_in_one_sentence
""".split()
"""Tests of these files that take seconds."""
STARTING = """
test_the_reference_workload_is_timed_in_two_processes_that_leave_nothing_behind
test_no_command_begins_in_a_folder_that_is_gone
test_the_first_picture_moves_unless_its_reader_wants_less_motion_and_is_light_and_dark
test_a_disk_that_fills_up_is_one_sentence_whatever_is_written
test_in_a_browser_all_columns_of_the_table_are_seen_and_sort
test_an_output_that_nobody_reads_is_no_mistake
test_what_a_command_starts_has_standard_files_also_where_its_own_are_closed
test_a_command_that_has_used_monarch_ends_before_the_interpreter_is_taken_apart
test_an_output_that_cannot_be_written_is_one_sentence
test_what_the_encoding_of_an_output_lacks_is_written_in_ascii
test_a_folder_that_another_process_writes_to_is_not_touched
test_importing_the_package_loads_neither_torch_nor_monarch
test_one_mesh_of_all_pods_is_asked_for
test_two_runs_in_one_namespace_do_not_take_each_others_pods
test_the_script_for_slurm_starts_one_worker_on_one_node_with_the_given_options
test_a_job_that_does_not_begin_or_ends_at_once_says_why
test_a_plan_shows_the_placement_and_what_would_be_submitted_and_submits_nothing
test_the_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not
test_a_folder_goes_with_its_process
test_what_is_new_or_not_ours_is_left_alone
test_another_process_with_another_hash_seed_draws_the_same_tasks
test_a_measured_process_takes_what_was_computed
test_nothing_is_said_where_the_library_cannot_keep_its_cache
test_the_check_imports_no_torch
test_a_plain_qwen2_needs_no_torch
""".split()
"""Tests of these files that start a process."""
_QUICK = {HERE / folder / f"test_{name}.py" for folder, names in FILES.items() for name in names.split()}
_running: list[str] = []


def is_quick(item: pytest.Item) -> bool:
    if HERE not in item.path.parents:
        return True
    named = getattr(item, "originalname", item.name)
    return item.path in _QUICK and named not in (*SLOWER, *STARTING) and not item.get_closest_marker("long")


def children() -> set[str]:
    """The processes that this one has started and that are there; nothing where the system does not
    say it."""
    found = set()
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            found |= set(task.read_text().split())
        except OSError:
            # A thread that has ended meanwhile.
            continue
    return found


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _running and event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"):
        raise AssertionError(
            f"{_running[0]} is marked quick, and starts a process ({event}); enter it in tests/quick.py"
        )


sys.addaudithook(_refuse)


class Alone:
    """Within it a process that is started, by Python or by a library, is an error."""

    def __init__(self, test: str) -> None:
        self.test = test

    def __enter__(self) -> None:
        self.before = children()
        _running.append(self.test)

    def __exit__(self, *_: object) -> None:
        _running.clear()
        assert not children() - self.before, f"{self.test} is marked quick, and a process is left of it"
