"""This app's verbs: one transaction each, safe to run twice."""
