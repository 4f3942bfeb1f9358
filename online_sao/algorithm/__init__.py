"""The mathematics of single-rollout asynchronous optimization (SAO, arXiv 2607.07508), and the recipes that put its pieces together.

Pure functions of torch tensors. Knows nothing of files, clocks, logging, settings, models or where a trajectory came from. Every function accepts
float32 or float64 (half precision is raised to float32) and keeps non-finite inputs out of its results and out of its gradients.
"""
