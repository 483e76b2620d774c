"""Transfer weights between meshes with different shardings: describe what each rank holds, and plan the
fewest bytes to send."""
