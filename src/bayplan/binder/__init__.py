"""Carries out what engines have decided: BindRequests become bound pods, or an honest failure.

It knows the API and nothing of the brain. Everything that it does may be done again: it can be killed at any point and
goes on from what the API server shows. `live.LiveBinder` is the whole of it; `plugin` is what others add.
"""
