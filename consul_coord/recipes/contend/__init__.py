"""The skeleton of an attempt: local ticket, session, moves, what stands in the way, deadline, giving up.

Belongs here: what every recipe's attempt does alike. Elections, groups and partitions also share how to call
users' functions (``callbacks``) and how to wake those who wait for a change (``changes``).
Does not belong here: the judgement of a reading, and the transactions, of one recipe.
"""
