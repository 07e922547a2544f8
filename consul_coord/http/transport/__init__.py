"""Carry one request to the agent and bring its whole reply back.

- ``base``: what every transport offers, and the limits they keep
- ``wire``: requests and replies of HTTP/1.1, as bytes
- ``errors``: what is known when it goes wrong
- ``exchange``: one exchange, what both engines share (which connection carries a request, and which ones are
  kept), and the blocking engine, on plain sockets
- ``pool``, ``limit``: the connections of a client, and how many its agent takes
- ``dial``, ``tls``, ``bounded``: how the blocking engine's connections are opened
- ``streams``: the engine on an event loop, through anyio
- ``user_clients``: over a client of httpx that the user brings
- ``build``: picks one

Rules
- A reply is returned whatever its status; to judge it is others' work. Redirects are never followed.
- ``timeout`` is the whole exchange, from the first look-up to the last byte of the body.
- An error says truthfully whether the request may have been applied.
- Nothing heavy (asyncio, anyio, ssl, httpx) is imported before it is needed.
"""
