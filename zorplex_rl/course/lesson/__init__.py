"""The parts of a lesson: header, terms, predictions, exercises, and their style sheet."""
