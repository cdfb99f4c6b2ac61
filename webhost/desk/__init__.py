"""The support desk over all apps: one search box, and a sidebar by task. Composes, decides nothing."""
