"""Draw plain data: figures for pages and run folders, and the live view of a run in the terminal."""
