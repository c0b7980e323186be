"""`Predictor`, the public class that computes predictions on a deployer's mesh.

The work is done in `engine/_predict`: add new behaviour there, and here the argument that turns it on.
"""
