"""The only room that imports Ray: engine replicas as actors, and the session with the cluster they run in."""
