"""Break clusters of real servers on purpose, and judge the histories: proof of the package, not part of it.

Rules
- It is in the sdist and not in the wheel. Nothing under ``consul_coord`` imports it.
- It uses the package as an application does: public names, and ``consul_coord.testing``.
"""
