"""Drivers and schedulers for other libraries, each a module of its own, which imports that library.

Belongs here: what another library calls. Does not belong here: how anything is locked, elected or joined.
"""
