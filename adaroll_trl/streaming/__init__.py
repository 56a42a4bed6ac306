"""Rollouts of a generation batch decided one by one, inside a single generation call, without rounds.

`loop` keeps an engine (`engine` and its kinds) at a fixed number of requests, hands what has ended to `scoring`, and
asks an allocator's `RolloutStream` for the next prompt. `seams` fits this into TRL: it stands in for the backend's
`generate` while one batch is generated. `checks` says where it cannot.
"""
