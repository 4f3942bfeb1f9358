"""Settings every test process needs before torch is imported."""

import os

# Threads that spin while they wait for work starve the other processes of a test that starts several.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
