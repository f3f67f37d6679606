"""The audit: whether a dataset keeps the promise, found out by experiments.

Each experiment runs in a forked process of its own, so that the user's process, its random state
and its dataset stay as they are.
"""
