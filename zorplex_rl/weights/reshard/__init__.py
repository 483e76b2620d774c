"""Weight transfer between meshes with different shardings: what each rank holds, the smallest plan,
and the transfer itself."""
