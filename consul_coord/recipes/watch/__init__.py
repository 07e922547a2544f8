"""Hearing of changes on the server: one engine for holds, waiters, sessions and users' watches.

Belongs here: blocking queries, shared readings, the bound on connections, what counts as evidence of a loss.
Does not belong here: what a recipe does about a change.
"""
