"""A model behind HTTP, to try it: an endpoint that speaks OpenAI's protocol, and a page for a browser.

`_batcher` puts requests into the rows of a `Pool`, `_requests` reads and checks them, `_answers` writes
OpenAI's documents, `_guard` bounds requests and connections, `_app` joins these, and `_serve` listens.
FastAPI and uvicorn are loaded where they are used: `meshwright[serve]`.
"""
