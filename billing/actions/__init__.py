"""This app's verbs: safe to run twice, late, and half."""
