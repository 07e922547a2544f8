"""The endpoints: one module per part of the HTTP API.

Each decodes bodies, calls the state and encodes replies. An endpoint is a function from a ``Call`` to a
``Reply`` or a ``Read``; it raises ``Refusal`` or ``StateError``. Which path and method leads to which
endpoint is the routes' business.
"""
