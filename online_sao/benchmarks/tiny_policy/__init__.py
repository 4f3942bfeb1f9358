"""A policy of a million parameters in a vocabulary of its own, for experiments of hundreds of updates in minutes. Knows no recipe."""
