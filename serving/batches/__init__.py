"""`/v1/batches`: a file of requests, answered by a job of Beam's in a process of its own.

batch_routes.py ─► batch_store.py ─► running.py: validation.py ─► job.py (`millrace run`, `embed`) ─► finishing.py
                   on the disk        lines checked, rows written    attaches to this model's engine    output, errors

A row is what the route of its endpoint would ask the engine (asking.py), and its answer has that route's form.
"""
