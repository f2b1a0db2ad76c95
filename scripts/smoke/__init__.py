"""What a smoke run of training needs: a small world, a tiny model, and a warm start for it."""
