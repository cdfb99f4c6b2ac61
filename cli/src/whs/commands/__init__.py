"""The commands, a module per subject."""
