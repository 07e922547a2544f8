"""Who takes part, one file each: how the users of that client do it, and nothing cleverer.

Rules
- A contender of the pair is entered with a function that does so many pairs of acquire and release on one
  key, uncontended, and returns the seconds that each took. It times them itself, in its own language.
- Its session is made before, and renewed meanwhile, unless its name says otherwise.
"""
