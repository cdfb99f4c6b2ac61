"""`make demo`: the main job, end to end, through public interfaces only."""
