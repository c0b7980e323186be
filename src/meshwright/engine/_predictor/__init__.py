"""`Predictor`, the public class that computes predictions on a deployer's mesh.
 The work
is done in `predict`, so add new behaviour there, and here only the argument that turns it on.
"""
