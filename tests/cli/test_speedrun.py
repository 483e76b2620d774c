"""What is wrong with a speedrun's files is said before the first run, which takes a minute."""

from __future__ import annotations

import contextlib
import fcntl
import json
from dataclasses import asdict

import pytest

from zorplex_rl.cli.commands import main
from zorplex_rl.learning.referee import RULES, Attempt

ENTRY = "from zorplex_rl.learning.entry import Entry\n\n\nclass Mine(Entry):\n    prompts = 2\n"


@pytest.fixture
def refused(monkeypatch, capsys):
    """Returns what the command says of these arguments, and that it begins no run."""
    monkeypatch.setattr("zorplex_rl.learning.referee.attempt", lambda *_: pytest.fail("a run began"))

    def refused(*arguments: object) -> str:
        assert main(["speedrun", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return refused


def test_an_entry_that_is_no_text_is_refused(refused, tmp_path):
    (tmp_path / "mine.py").write_bytes(b"\xff\xfe")
    assert "mine.py' cannot be read" in refused(tmp_path / "mine.py")


@pytest.mark.parametrize("to", ["/proc/nothere", "mine.py"])
def test_a_folder_for_the_card_that_cannot_be_written_is_refused(refused, tmp_path, monkeypatch, to):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ENTRY)
    assert f"--to {to!r} cannot be written" in refused("mine.py", "--to", to)


RUN = Attempt(seconds=10.0, calibrated=20.0, right=380, tasks=400, curve=[])
CARD = {"source": ENTRY, "rules": RULES, "begun": 1, "attempts": [asdict(RUN)]}


@pytest.mark.parametrize(
    "written",
    [
        "{torn",
        100_000 * "[",
        "[]",
        "{}",
        json.dumps(CARD | {"begun": -1}),
        json.dumps(CARD | {"begun": 1e999}),
        json.dumps(CARD | {"attempts": [7]}),
        json.dumps(CARD | {"attempts": [asdict(RUN) | {"seconds": "ten"}]}),
        json.dumps(CARD | {"attempts": [asdict(RUN) | {"tasks": 0}]}),
    ],
)
def test_a_card_that_cannot_be_read_is_refused_and_stays(refused, tmp_path, written):
    (tmp_path / "mine.py").write_text(ENTRY)
    card = tmp_path / "to" / "cards" / "mine.json"
    card.parent.mkdir(parents=True)
    card.write_text(written)
    assert "mine.json' cannot be read; move it away" in refused(tmp_path / "mine.py", "--to", tmp_path / "to")
    assert card.read_text() == written


def test_a_folder_in_place_of_a_card_is_refused(refused, tmp_path):
    (tmp_path / "mine.py").write_text(ENTRY)
    (tmp_path / "to" / "cards" / "mine.json").mkdir(parents=True)
    assert "mine.json' cannot be read; move it away" in refused(tmp_path / "mine.py", "--to", tmp_path / "to")


def test_an_entry_whose_name_would_write_lines_of_records_is_refused(refused, tmp_path):
    (tmp_path / "mine` | 1.0 |.py").write_text(ENTRY)
    assert "would be in RECORDS.md" in refused(tmp_path / "mine` | 1.0 |.py", "--to", tmp_path / "to")


def test_two_speedruns_do_not_write_over_each_others_runs(refused, tmp_path):
    (tmp_path / "mine.py").write_text(ENTRY)
    (tmp_path / "to").mkdir()
    with (tmp_path / "to" / "RECORDS.md").open("a") as records:
        fcntl.flock(records, fcntl.LOCK_EX)
        assert "is in use by another speedrun" in refused(tmp_path / "mine.py", "--to", tmp_path / "to")


@pytest.fixture
def card_of(monkeypatch, tmp_path):
    """Returns ``card_of(runs)``: the entry's card after it was run until there are so many, of which
    None is stopped by hand."""
    (tmp_path / "mine.py").write_text(ENTRY)

    def card_of(*runs: Attempt | None) -> dict[str, object]:
        coming = list(runs)

        def attempt(*_: object) -> Attempt:
            if (found := coming.pop(0)) is None:
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr("zorplex_rl.learning.referee.attempt", attempt)
        with contextlib.suppress(KeyboardInterrupt):
            main(["speedrun", str(tmp_path / "mine.py"), "--seeds", "2", "--to", str(tmp_path / "to")])
        return json.loads((tmp_path / "to" / "cards" / "mine.json").read_text())

    return card_of


def test_a_card_counts_the_runs_that_were_stopped(card_of):
    stopped = card_of(None)
    assert (stopped["begun"], stopped["attempts"], stopped["verdict"]) == (1, [], None)
    whole = card_of(RUN, RUN)
    assert (whole["begun"], len(whole["attempts"])) == (3, 2)
    assert card_of() == whole, "two runs are there, so none begins"


def test_a_card_of_other_rules_begins_anew(card_of, monkeypatch):
    card_of(RUN, RUN)
    monkeypatch.setattr("zorplex_rl.learning.referee.RULES", 99)
    anew = card_of(RUN, RUN)
    assert (anew["rules"], anew["begun"], len(anew["attempts"])) == (99, 2, 2)
