"""Connections and the bodies of requests: how many there may be, how large, and how long they may take."""
