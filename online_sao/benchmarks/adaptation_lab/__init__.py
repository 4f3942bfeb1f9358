"""How fast a recipe follows when what people want shifts, on a policy so small that many seeds can be run. See command.py for how it is run."""
