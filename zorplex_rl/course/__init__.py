"""The course: what only notebooks and their pages use. It imports the system, which never imports
it."""
