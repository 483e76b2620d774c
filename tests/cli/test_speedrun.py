"""What is wrong with a speedrun's files is said before the first run, which takes a minute."""

from __future__ import annotations

import pytest

from zorplex_rl.cli.commands import main

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


def test_a_card_that_cannot_be_read_is_refused_and_stays(refused, tmp_path):
    (tmp_path / "mine.py").write_text(ENTRY)
    card = tmp_path / "to" / "cards" / "mine.json"
    card.parent.mkdir(parents=True)
    card.write_text("{torn")
    assert "mine.json' cannot be read; move it away" in refused(tmp_path / "mine.py", "--to", tmp_path / "to")
    assert card.read_text() == "{torn"
