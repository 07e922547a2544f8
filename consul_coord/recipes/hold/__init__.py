"""The holds of a client: the state machine of a hold, the calls on one, kinds of hold.

Belongs here: whether a hold is held (pure, table-driven), what a holder can ask or write, giving it up.
Does not belong here: how a hold was acquired, and what is sent to give one kind of hold back.
"""
