"""From what was logged to what is trained on: scores to rewards, interactions to trajectories, trajectories to packed batches.

Pure data transforms. Knows nothing of databases, models, advantages or losses.
"""
