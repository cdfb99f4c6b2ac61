"""The API of what runs, a module per resource; runtimes/api.py lists the addresses."""
