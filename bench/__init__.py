"""The benchmarks: this package beside its peers, on one real agent, in one run.

- ``python -m bench``: run them; ``--help`` lists the measures
- ``registry``: the table of measures
- ``measures``: one file per measure: what is done, how often, and which contenders it is done with
- ``contenders``: one file per contender: how its users do it
- ``peers``: programs in other languages that contenders run
- ``results``, ``markdown``: what comes out
- ``rounds``, ``bed``, ``counting``, ``holding``, ``machine``: what measures share

Rules
- Contenders of one measure run in turns, in rounds, after a warm-up, so that a busy machine is busy for all
  of them. A ratio is taken within each round; what is reported is the median over the rounds.
- The first thing to read is a ratio; times are there to be compared within one report only.
- What can't run here (no Go, no binary) is a line in the report, never a silent gap.
"""
