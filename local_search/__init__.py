"""Offline search: a corpus of JSON lines, a lexical index over it, and a service that answers `POST /retrieve`."""
