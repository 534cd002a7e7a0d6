"""Studying: traces read, replayed in virtual time by the engines that serve a cluster, compared and swept."""
