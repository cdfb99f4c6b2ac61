"""English, the one language of every page."""
