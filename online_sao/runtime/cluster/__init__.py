"""What Ray places, and how it is kept alive: engine replicas and the learner. The only room that imports Ray; what runs in the serving process never
imports the learner."""
