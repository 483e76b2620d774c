"""The course: what only notebooks and their pages use. The system never imports it."""
