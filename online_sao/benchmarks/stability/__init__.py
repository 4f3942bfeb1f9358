"""Which recipes stay stable when the policy that samples is behind the one that is trained. See command.py for how it is run."""
