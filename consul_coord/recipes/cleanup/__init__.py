"""Giving back and sweeping: unlock, withdraw and destroy, as repeatable tasks of the reaper.

Belongs here: whatever has to be done until the server has answered, whoever began it.
Does not belong here: a decision about who gets a key.
"""
