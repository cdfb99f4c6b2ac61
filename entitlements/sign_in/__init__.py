"""Signing in: password, second factor, how many guesses are taken, and the door to the admin."""
